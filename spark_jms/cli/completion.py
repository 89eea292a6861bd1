"""`jmsq completion`: the script with which a shell completes commands, options and destination names.

Features: C14 (docs/FEATURES.md)
"""

from __future__ import annotations

import click

from spark_jms.cli.settings import CommandSettings, command

_VARIABLE = "_JMSQ_COMPLETE"


@command("completion", short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, settings: CommandSettings, shell: str) -> None:
    """Print the completion script of a shell. It completes destination names from --root or JMSQ_ROOT.

    \b
    bash   eval "$(jmsq completion bash)"        in ~/.bashrc
    zsh    eval "$(jmsq completion zsh)"         in ~/.zshrc
    fish   jmsq completion fish | source         in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None, shell
    script = made(context.find_root().command, {}, "jmsq", _VARIABLE).source()
    if settings.as_json:
        settings.out.document({"shell": shell, "script": script})
    else:
        click.echo(script)

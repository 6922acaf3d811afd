"""The command `archwright completion`: print the script for tab completion in a shell."""

from collections.abc import Sequence

from archwright.cli.parser import Parser

ABOUT = """\
Print the completion script of a shell, for verbs, options, models, runs, and dotted keys with their values.

  bash   echo 'eval "$(archwright completion bash)"' >> ~/.bashrc
  zsh    echo 'eval "$(archwright completion zsh)"' >> ~/.zshrc
  fish   archwright completion fish > ~/.config/fish/completions/archwright.fish"""

EXAMPLES = """\
  eval "$(archwright completion bash)"       for this shell only"""

ZSH = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n"
"""Commands that start the completion system of zsh, in case .zshrc does not."""


def run(words: Sequence[str]) -> int:
    """Print the completion script of a shell."""
    parser = Parser("completion", ABOUT, EXAMPLES)
    shells = ("bash", "zsh", "fish")
    parser.add_argument("shell", choices=shells, metavar="SHELL", help=", ".join(shells))
    shell = parser.parse(words).shell
    from argcomplete.shell_integration import shellcode

    print((ZSH if shell == "zsh" else "") + shellcode(["archwright"], shell=shell).strip())
    return 0

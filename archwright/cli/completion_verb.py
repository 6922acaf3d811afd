"""archwright completion"""

from collections.abc import Sequence

from archwright.cli.parser import Parser

ABOUT = """\
Print the script that lets a shell complete verbs, options, models, runs, and dotted keys with their values.

  bash   echo 'eval "$(archwright completion bash)"' >> ~/.bashrc
  zsh    echo 'eval "$(archwright completion zsh)"' >> ~/.zshrc
  fish   archwright completion fish > ~/.config/fish/completions/archwright.fish"""

EXAMPLES = """\
  eval "$(archwright completion bash)"       in this shell alone"""

ZSH = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n"
"""Starts the completion system of a zsh whose .zshrc does not."""


def run(words: Sequence[str]) -> int:
    """Print a shell's script."""
    parser = Parser("completion", ABOUT, EXAMPLES)
    shells = ("bash", "zsh", "fish")
    parser.add_argument("shell", choices=shells, metavar="SHELL", help=", ".join(shells))
    shell = parser.parse(words).shell
    from argcomplete.shell_integration import shellcode

    print((ZSH if shell == "zsh" else "") + shellcode(["archwright"], shell=shell).strip())
    return 0

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

BASH = r"""
_archwright() {
    # Whole words up to the cursor: bash itself also breaks them at = and :, and replaces what follows the last.
    local line="${COMP_LINE:0:COMP_POINT}" words found cut
    read -ra words <<< "$line"
    case "$line" in *[[:space:]]) words+=("") ;; esac
    cut="${words[${#words[@]}-1]}"
    cut="${cut%"$2"}"
    COMPREPLY=()
    while IFS= read -r found; do
        COMPREPLY+=("${found#"$cut"}")
    done < <("${words[0]/#\~/$HOME}" complete "${words[@]:1}" 2> /dev/null)
    case "${#COMPREPLY[@]} ${COMPREPLY[0]}" in
        "1 "*[=.:]) compopt -o nospace 2> /dev/null ;;  # which old ones do not have
    esac
}
complete -o default -F _archwright archwright
"""

ZSH = r"""
#compdef archwright
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_archwright() {
    local -a found
    found=(${(f)"$(${~words[1]} complete "${(@)words[2,CURRENT-1]}" "$PREFIX" 2> /dev/null)"})
    if (( ! $#found )); then
        compset -P '*='
        _files
        return
    fi
    compadd -S '' -- ${(M)found:#*[=.:]}
    compadd -- ${found:#*[=.:]}
}
compdef _archwright archwright
"""

FISH = r"""
function __archwright_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l found (eval $words[1] complete (string escape -- $words[2..]) 2> /dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        set -l key (string match -r '^.*=' -- $words[-1])
        for path in (__fish_complete_path (string replace -r '^.*=' '' -- $words[-1]))
            printf '%s\n' "$key$path"
        end
    end
end
complete -c archwright -f -a '(__archwright_complete)'
"""

SHELLS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def run(words: Sequence[str]) -> int:
    """Print a shell's script."""
    parser = Parser("completion", ABOUT, EXAMPLES)
    parser.add_argument("shell", choices=[*SHELLS], metavar="SHELL", help=", ".join(SHELLS))
    print(SHELLS[parser.parse(words).shell].strip())
    return 0

"""Print the script that completes mpt's words: verbs, recipes, groups, keys and their values."""

import argparse

from mpt_cli.errors import OK

# Bash splits words at = and :, so it hands over the whole line and gets back only what follows the last of them.
_BASH = """_mpt() {
    mapfile -t COMPREPLY < <("${COMP_WORDS[0]}" __complete "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null)
    case "${COMPREPLY[0]}" in *=|*.|*/) compopt -o nospace ;; esac
}
complete -F _mpt mpt
"""
_ZSH = """#compdef mpt
_mpt() {
    local -a found
    found=("${(@f)$("${words[1]}" __complete "${BUFFER[1,CURSOR]}" 2>/dev/null)}")
    compadd -S '' -- "${(@)found:#*[^=./]}"
    compadd -- "${(@)found:#*[=./]}"
}
compdef _mpt mpt
"""
_FISH = """complete -c mpt -f -a '(mpt __complete (commandline -cp))'
"""
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=list(_SCRIPTS))
    parser.epilog = (
        "to have it in every shell:\n"
        "  bash:  mpt completion bash >> ~/.bashrc\n"
        "  zsh:   mpt completion zsh >> ~/.zshrc        (after compinit)\n"
        "  fish:  mpt completion fish > ~/.config/fish/completions/mpt.fish"
    )


def run(arguments: argparse.Namespace) -> int:
    print(_SCRIPTS[arguments.shell], end="")
    return OK

"""Create a locale whose money has three fraction digits, in a folder that a server reads.

In: a folder.  Out: the folder for LOCPATH.
Invariant: localedef of the C library compiles the text below, which includes no other locale: a machine may have
only the locale C.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

NAME = "zz_ZZ"

_SOURCE = """comment_char %
escape_char /
LC_MONETARY
int_curr_symbol "ZZD "
currency_symbol "Z"
mon_decimal_point ","
mon_thousands_sep "."
mon_grouping 3;3
positive_sign ""
negative_sign "-"
int_frac_digits 3
frac_digits 3
p_cs_precedes 0
p_sep_by_space 1
n_cs_precedes 0
n_sep_by_space 1
p_sign_posn 1
n_sign_posn 0
END LC_MONETARY
"""


def make_locale(folder: Path) -> Path:
    """Create the locale NAME in a new folder that every account may read."""
    folder.mkdir(mode=0o755)
    source, characters = folder / "source", folder / "characters"
    source.write_text(_SOURCE)
    lines = [f"<U{n:04X}> /x{n:02x} C{n}" for n in range(128)]
    head = ["<code_set_name> ANSI_X3.4-1968", "<comment_char> %", "<escape_char> /", "CHARMAP"]
    characters.write_text("\n".join([*head, *lines, "END CHARMAP"]) + "\n")
    command = ["localedef", "-c", "-f", str(characters), "-i", str(source), str(folder / NAME)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # status 1 means warnings
    assert (folder / NAME / "LC_MONETARY").exists(), done.stderr
    return folder

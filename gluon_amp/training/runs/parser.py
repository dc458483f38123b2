"""The command-line parser of training runs."""

import argparse
from typing import Any, Dict, Optional, Sequence, Tuple

from gluon_amp.training.command_line import Add, HelpFormatter, Parser, adding_to


class TrainingParser(Parser):
    """A parser for many options, in groups with these titles; its help shows all defaults."""

    def __init__(
        self, groups: Sequence[str] = (), examples: Optional[Dict[str, str]] = None, **options: Any
    ):
        """`examples` has a line of options for each group, which its help shows."""
        super().__init__(usage="%(prog)s [OPTION ...]", formatter_class=_HelpFormatter, **options)
        lines = {title: f"%(prog)s {words}" for title, words in (examples or {}).items()}
        self._titled = {t: self.add_argument_group(t, lines.get(t)) for t in groups}

    def group(self, title: str) -> Add:
        """Return the function that adds an option to the group of this title."""
        return adding_to(self._titled[title])

    def refuse(self, flag: str, replacement: str) -> None:
        """Name the replacement if `flag`, an option of other scripts, is on the command line."""
        self.add_argument(flag, action=_Refused, dest=argparse.SUPPRESS, replacement=replacement)

    def parse_explicit(
        self, arguments: Optional[Sequence[str]] = None
    ) -> Tuple[Dict[str, Any], Dict[str, Any]]:
        """Return the defaults of all options, and the values that are on the command line."""
        options = vars(self.parse_args(arguments, _Explicit()))
        return vars(self.parse_args([])), options


class _Explicit(argparse.Namespace):
    """Stays without defaults, as argparse sets one only if there is no attribute of that name."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)


class _HelpFormatter(HelpFormatter):
    def _get_help_string(self, action: argparse.Action) -> Optional[str]:
        default = action.default
        if default in (None, argparse.SUPPRESS) or isinstance(default, bool):
            return action.help
        values = default if isinstance(default, tuple) else (default,)
        shown = ",".join(f"{v:g}" if isinstance(v, float) else str(v) for v in values)
        return f"{(action.help or '').partition(' (default: ')[0]} (default: {shown})"

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Show the metavar once, after the last alias."""
        text = super()._format_action_invocation(action)
        if action.option_strings and action.nargs != 0:
            metavar = self._get_default_metavar_for_optional(action)
            text = f"{', '.join(action.option_strings)} {self._format_args(action, metavar)}"
        lines = self._split_lines(text, self._width - self._current_indent)
        return f"\n{' ' * 2 * self._current_indent}".join(lines)


class _Refused(argparse.Action):
    """An option of another script that has a replacement here."""

    def __init__(self, replacement: str, **options: Any):
        super().__init__(nargs="*", help=argparse.SUPPRESS, **options)
        self.replacement = replacement

    def __call__(
        self, parser: argparse.ArgumentParser, _space: Any, _values: Any, flag: Any = None
    ):
        parser.error(f"{flag} is not an option here: {self.replacement}.")

"""Every command in README and docs is one that the program takes: name, options, settings, methods and protocols."""

import shlex

import pytest
import typer
from written import commands, pages, title

from hashlens.cli import app
from hashlens.data.protocols import PROTOCOLS
from hashlens.features.networks import NETWORKS
from hashlens.hashers.methods import METHODS, hasher_class
from hashlens.index import ENGINES
from hashlens.results.paper.targets import TARGETS
from hashlens.settings import parse

ROOT_COMMAND = typer.main.get_command(app)
WORDS = {  # options whose values are names that we know
    "--method": METHODS,
    "--methods": METHODS,
    "--protocol": PROTOCOLS,
    "--engine": ENGINES,
    "--backbone": NETWORKS,
    "--by": ("first", "both", "second"),
    "--scale": ("smoke", "small", "full"),
    "--preset": ("published",),
    "--on": ("local", "ray"),
}


def check(line, partial=False):
    """The options of a command with their values, after everything was looked up; running text may be `partial`."""
    words = shlex.split(line)[1:]
    command, name = ROOT_COMMAND, "hashlens"
    while hasattr(command, "commands"):
        if not words or words[0] not in command.commands:
            assert name == "hashlens duplicates", f"{name} has no command {words[:1]}"
            words = ["find", *words]
        name, command = f"{name} {words[0]}", command.commands[words[0]]
        words = words[1:]
    options = {option: one for one in command.params if one.param_type_name == "option" for option in one.opts}
    given, positions = [], []
    while words:
        word = words.pop(0)
        if word.startswith("-") and word != "-":
            word, _, value = word.partition("=")
            if word in ("-h", "--help"):
                continue
            assert word in options, f"{name} has no option {word}"
            if not options[word].is_flag:
                assert value or words or partial, f"{word} of {name} needs a value"
                given.append((word, value or (words.pop(0) if words else "VALUE")))
        else:
            positions.append(word)
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    most = 10**6 if any(one.nargs == -1 for one in arguments) else len(arguments)
    assert len(positions) <= most, f"{name} takes {most} arguments, not {positions}"
    return name, positions, given


@pytest.mark.parametrize("page", pages(), ids=title)
def test_commands_of_a_page(page):
    for line in commands(page):
        name, positions, given = check(line, partial=True)
        values = dict(given)
        for option, value in given:
            if option in WORDS and not value.startswith(("hf:", "NAME")):
                for one in value.replace("|", ",").split(","):
                    assert one in WORDS[option] or one.isupper(), line
            if option == "--set" and name in ("hashlens train", "hashlens tune") and not value.isupper():
                method = values.get("--method", "dtsh")
                if method in METHODS:
                    parse(hasher_class(method), [value])
        if name == "hashlens methods":
            assert all(one in METHODS or one.isupper() for one in positions), line
        if name == "hashlens reproduce":
            assert all(one in (*TARGETS, "all") for one in positions), line


def test_wrong_commands_are_noticed():
    for line in (
        "hashlens serach photos q.jpg",
        "hashlens search photos q.jpg --colour",
        "hashlens index biuld codes",
        "hashlens doctor now",
        "hashlens train photos --bits",
    ):
        with pytest.raises(AssertionError):
            check(line)


def test_there_are_many():
    found = {check(line, partial=True)[0] for page in pages() for line in commands(page)}
    every = {path for path, command in all_commands(ROOT_COMMAND, "hashlens") if not hasattr(command, "commands")}
    missing = every - found - {"hashlens index tables"}
    assert not missing, f"no page shows how to use {sorted(missing)}"


def all_commands(command, path):
    for name, one in command.commands.items():
        yield f"{path} {name}", one
        if hasattr(one, "commands"):
            yield from all_commands(one, f"{path} {name}")

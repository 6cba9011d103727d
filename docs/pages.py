"""The pages of the site that are made from the software itself: commands, methods, names, HTTP, metrics, examples.

docs/conf.py writes them to docs/generated before each build, so that none can be out of date.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import tempfile
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import typer
from PIL import Image

import hashlens
from hashlens import losses
from hashlens.cli import app
from hashlens.data.protocols import PROTOCOLS
from hashlens.data.sources import SOURCES
from hashlens.features.networks import NETWORKS
from hashlens.hashers.methods import FEATURES, IMAGES, LABELLED, METHODS, Method, hasher_class
from hashlens.index import ENGINES
from hashlens.results.metrics import DEFINITIONS, METRICS
from hashlens.settings import Setting, describe

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
EXAMPLES = ROOT / "examples"
NOTE = "% Made by docs/pages.py from the software itself; do not edit.\n\n"
KINDS_OF_METHODS = {
    IMAGES: "Networks that learn from images and labels",
    LABELLED: "Learned from features and labels",
    FEATURES: "Learned from features alone, without labels",
}
WHEN = {
    IMAGES: "You have labels and time to train a network, or fixed features and labels.",
    LABELLED: "You have labels and fixed features, and want a model in seconds, without torch.",
    FEATURES: "You have no labels, or classes that no label covers.",
}


def pages() -> dict[str, str]:
    """Path below docs/generated and text of every page."""
    found = {"cli.md": cli_page(), "api.md": api_page(), "http.md": http_page(), "metrics.md": metrics_page()}
    found |= {"names.md": names_page(), "formats.md": formats_page(), "methods/index.md": methods_page()}
    found |= {f"methods/{name}.md": method_page(name) for name in METHODS}
    found["examples.md"] = examples_page()
    return {path: NOTE + text.rstrip() + "\n" for path, text in found.items()}


# commands


def cli_page() -> str:
    parts = [
        "# Command line",
        "Every command and option, from the program itself. Results go to standard output, progress and notes to"
        " standard error. Sources of images are the same for every command: [names](names.md#sources-of-images).",
        "`hashlens --install-completion` adds completion to your shell.",
        "| exit code | meaning |\n|---:|---|\n" + "\n".join(f"| {n} | {text} |" for n, text in exit_codes()),
        "| variable | meaning |\n|---|---|\n" + "\n".join(f"| `{name}` | {text} |" for name, text in VARIABLES.items()),
    ]
    for path, command in commands():
        parts += [f"({anchor(path)})=\n## {path}", prose(inspect.cleandoc(command.help or ""))]
        if not hasattr(command, "commands"):
            parts += ["```text\n" + usage(path, command) + "\n```", parameter_table(command)]
    return "\n\n".join(parts)


VARIABLES = {  # a test compares them with those that the source reads
    "HASHLENS_CACHE": "folder for downloads, features and codes; `hashlens doctor` shows it",
    "HASHLENS_OFFLINE": "1: nothing is downloaded",
    "HASHLENS_THREADS": "number of threads; by default all cores",
    "HASHLENS_TOKEN": "token of `hashlens serve` that may search",
    "HASHLENS_WRITE_TOKEN": "token of `hashlens serve` that may also add and remove images",
    "HASHLENS_KERNELS": "numpy, plain, avx2, avx512 or neon: how bits are counted, instead of the fastest way",
    "HASHLENS_RANK_TIMEOUT": "seconds after which a silent process of a common training counts as lost; 600",
}


KINDS_OF_VALUES = {"int": "N", "float": "X", "path": "PATH"}  # in the name of a type


def commands() -> Iterator[tuple[str, Any]]:
    """Every command and group by what is typed, such as "hashlens index build"."""

    def below(path: str, command: Any) -> Iterator[tuple[str, Any]]:
        for name, one in getattr(command, "commands", {}).items():
            yield f"{path} {name}", one
            yield from below(f"{path} {name}", one)

    yield from below("hashlens", typer.main.get_command(app))


def anchor(path: str) -> str:
    return path.replace(" ", "-")


def exit_codes() -> list[tuple[str, str]]:
    from hashlens import errors

    listed = (errors.__doc__ or "").partition("Exit codes: ")[2].strip().rstrip(".").replace("\n", " ")
    return [("0", "done"), *((n, text) for n, text in re.findall(r"(\d+) ([^,]+(?:, [^\d]+)*?)(?=, \d|$)", listed))]


def usage(path: str, command: Any) -> str:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    words = [one.name.upper() if one.required else f"[{one.name.upper()}]" for one in arguments]
    return " ".join([path, *words, "[OPTIONS]"])


def parameter_table(command: Any) -> str:
    rows = ["{.options}", "| option | meaning | default |", "|---|---|---|"]
    for one in command.params:
        if getattr(one, "hidden", False):
            continue
        names = ", ".join(f"`{name}`" for name in one.opts)
        if one.param_type_name == "argument":
            names = f"`{one.name.upper()}`"
        elif not one.is_flag:
            names += f" {one.metavar or kind_of(one)}"
        help = one.help or ""
        if one.envvar:
            help += f" Or set `{one.envvar}`."
        rows.append(f"| {names} | {cell(help)} | {cell(default_of(one))} |")
    return "\n".join(rows)


def kind_of(option: Any) -> str:
    kind = type(option.type).__name__.lower()
    return next((word for part, word in KINDS_OF_VALUES.items() if part in kind), "TEXT")


def default_of(option: Any) -> str:
    if option.required:
        return "required"
    if isinstance(option.show_default, str):
        return option.show_default
    default = option.default
    if default is None or default is False or default in ([], ""):
        return ""
    return f"`{default}`"


# methods


def methods_page() -> str:
    parts = [
        "# Methods",
        f"{len(METHODS)} methods, one contract: `fit`, `encode`, `save`. Each page has the objective, the settings, the"
        " differences from the paper and the measured numbers. `hashlens methods` lists them in the terminal;"
        " [Choose bits and a method](../../howto/choose.md) helps to pick one.",
    ]
    for kind, title in KINDS_OF_METHODS.items():
        rows = ["| method | what it does | paper |", "|---|---|---|"]
        for name, method in METHODS.items():
            if method.learns_from == kind:
                rows.append(f"| [`{name}`]({name}.md) | {cell(method.summary)} | {cell(method.paper)} |")
        parts += [f"## {title}", WHEN[kind], "\n".join(rows)]
    listed = "\n".join(METHODS)
    parts.append(f"```{{toctree}}\n:hidden:\n\n{listed}\n```")
    return "\n\n".join(parts)


def method_page(name: str) -> str:
    method, cls = METHODS[name], hasher_class(name)
    about = inspect.getdoc(cls) or ""
    parts = [f"# {cls.__name__}", f"*{method.summary[0].upper()}{method.summary[1:]}.*"]
    parts.append(f":::{{py:class}} hashlens.{cls.__name__}(n_bits=48, **settings)\n{prose(about)}\n:::")
    parts += ["## Use it", use(name, method, cls), "## When to use it", when(name, method)]
    parts += ["## Settings", settings_table(describe(cls))]
    if not RESULTS.exists():
        parts += ["## Numbers", NO_NUMBERS]
    elif table := numbers(name):
        parts += ["## Numbers", NUMBERS_NOTE, table]
    return "\n\n".join(parts)


def use(name: str, method: Method, cls: type) -> str:
    python = f"{cls.__name__}(48).fit({'X, y' if method.supervised else 'X'}).encode(X)"
    typed = "hashlens train photos/" + ("" if name == "dtsh" else f" --method {name}")
    return f"```\n{typed}\n```\n\n```python\nfrom hashlens import {cls.__name__}\n\ncodes = {python}\n```"


def when(name: str, method: Method) -> str:
    """What it needs, and where it stands among the methods that were measured on the same data."""
    lines = [WHEN[method.learns_from]]
    for data in ("birds100", "grocery81", "voc2007"):
        rows = [row for row in comparison_rows() if row["source"] == data and row["kind"] != "images"]
        ranked = sorted(rows, key=lambda row: -row["lengths"]["48"]["map"])
        place = next((i for i, row in enumerate(ranked, 1) if row["method"] == name), None)
        if place is not None:
            row = ranked[place - 1]
            lines.append(
                f"- {data}, 48 bits, fixed features: MAP {row['lengths']['48']['map']:.3f}, number {place} of"
                f" {len(ranked)} methods, trained in {row['fit_seconds']:.2g} s."
            )
    lines.append("See all methods side by side: [images of your own](../../own-data.md), "
                 "[CIFAR-10 and MIRFLICKR-25K](../../comparison.md).")  # fmt: skip
    places = ["\n".join(lines[1:-1])] if len(lines) > 2 else []
    return "\n\n".join([lines[0], *places, lines[-1]])


NUMBERS_NOTE = (
    "MAP over the whole ranking, ties in database order; mean over splits where there are several. *fixed* stands for"
    " the features of a pretrained network that is not trained. Printed numbers are those of the DTSH paper's tables."
)
NO_NUMBERS = (
    "This site was built from the source archive, which leaves out the measured results (`benchmarks/results`). Build"
    " it from a clone of the repository to see the numbers here."
)


def comparison_rows() -> list[dict[str, Any]]:
    """The rows of all committed comparisons, each with its source, protocol and kind."""
    found = []
    for path in sorted((RESULTS / "comparison").glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        known = {"source": result["source"], "protocol": result["protocol"]["name"]}
        if path.stem.partition("-")[0] in ("birds100", "grocery81", "voc2007"):
            known["source"] = path.stem.partition("-")[0]
        known["kind"] = path.stem.partition("-")[2]
        found += [row | known for row in result["rows"]]
    return found


def numbers(name: str) -> str:
    own = [row for row in comparison_rows() if row["method"] == name]
    lengths = sorted({int(n) for row in own for n in row["lengths"]})
    rows = ["| data | protocol | features | " + " | ".join(f"{n} bits" for n in lengths) + " |"]
    rows.append("|---|---|---|" + "---:|" * len(lengths))
    for row in own:
        cells = [score(row["lengths"].get(str(n))) for n in lengths]
        features = {"given": "fixed"}.get(row["features"], row["features"])
        source = Path(row["source"]).name
        rows.append(f"| {source} | {row['protocol']} | {features} | {' | '.join(cells)} |")
    return "\n".join(rows) if own else ""


def score(at: dict[str, Any] | None) -> str:
    if at is None or at.get("map") is None:
        return ""
    deviation = at.get("map_deviation")
    text = f"{at['map']:.3f}" + (f" ±{deviation:.3f}" if deviation else "")
    return text + (f" (printed {at['printed']['map']:.3f})" if at.get("printed") else "")


def settings_table(settings: list[Setting]) -> str:
    rows = ["{.settings}", "| setting | default | meaning | allowed | tuned |", "|---|---|---|---|---|"]
    for one in settings:
        default = "none" if one.default is None else one.default
        tuned = one.tuned.removeprefix("tuned ")
        cells = [f"`{one.name}`", f"`{default}`", *map(cell, (one.help, one.range, tuned))]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


# Python


def public_names() -> dict[str, str]:
    """The module of every public name, as __init__.pyi lists them."""
    stub = ast.parse((ROOT / "src" / "hashlens" / "__init__.pyi").read_text(encoding="utf-8"))
    lines = [line for line in stub.body if isinstance(line, ast.ImportFrom)]
    return {alias.name: str(line.module) for line in lines for alias in line.names}


GROUPS = {
    "Search": ["search_folder", "open_searcher", "HammingIndex", "Codes", "Encoder", "general", "refine"],
    "Duplicates and groups": ["find_duplicates", "find_groups"],
    "Train": [
        "make_hasher",
        "load",
        "export",
        "METHODS",
        "Training",
        "Hasher",
        "DeepHasher",
        "LinearHasher",
        "KernelHasher",
    ],
    "Write a method": ["setting", "check_hasher"],
    "Compare and evaluate": ["compare", "Comparison", "tune", "Tuning", "evaluate_codes"],
    "Data": ["open_source", "Source", "Labels", "make_protocol"],
    "Errors": ["HashlensError"],
}


def api_page() -> str:
    names = public_names()
    methods = {hasher_class(name).__name__: name for name in METHODS}
    parts = [
        "# Python",
        "Everything that `from hashlens import ...` gives. Names are loaded when they are used: `import hashlens` takes"
        " milliseconds and imports neither torch nor numba. All names are typed.",
        "**Methods**: " + ", ".join(f"[{title}](methods/{name}.md)" for title, name in sorted(methods.items())) + ".",
    ]
    listed = {name for group in GROUPS.values() for name in group}
    rest = sorted(set(names) - listed - set(methods) - {"losses"})
    for title, group in {**GROUPS, **({"Others": rest} if rest else {})}.items():
        parts.append(f"## {title}")
        parts += [documented(f"hashlens.{name}", getattr(hashlens, name)) for name in group]
    parts.append("## Losses")
    parts.append(
        "`hashlens.losses` works in any torch training loop: `DTSHLoss(48)(u, labels)`, where `u` is (n, bits) and"
        " `labels` is (n,) or (n, classes)."
    )
    for name in sorted(vars(losses)):
        one = getattr(losses, name)
        if inspect.isclass(one) and name.endswith("Loss"):
            parts.append(documented(f"hashlens.losses.{name}", one))
    return "\n\n".join(parts)


def documented(path: str, obj: Any) -> str:
    """The directive of one name with its docstring and, for a class, its own public methods."""
    if not callable(obj):
        return f":::{{py:data}} {path}\n{prose(data_doc(path))}\n:::"
    kind = "class" if inspect.isclass(obj) else "function"
    body = [prose(inspect.getdoc(obj) or "")]
    if inspect.isclass(obj):
        for name, member in sorted(vars(obj).items()):
            function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            if name.startswith("_") or not getattr(member, "__doc__", None):
                continue
            if isinstance(member, property):
                body.append(f"::::{{py:property}} {name}\n{prose(inspect.getdoc(member) or '')}\n::::")
            elif inspect.isfunction(function):
                how = ":classmethod:\n\n" if isinstance(member, classmethod) else ""
                body.append(
                    f"::::{{py:method}} {name}{signature(function)}\n{how}{prose(inspect.getdoc(member) or '')}\n::::"
                )
    shown = path + (signature(obj) if path.rpartition(".")[2] not in ("Hasher",) else "(n_bits=48, **settings)")
    return f":::::{{py:{kind}}} {shown}\n" + "\n\n".join(body) + "\n:::::"


def signature(obj: Any) -> str:
    """The signature without annotations, which the prose explains."""
    try:
        found = inspect.signature(obj)
    except (TypeError, ValueError):
        return "(...)"
    plain = []
    for one in found.parameters.values():
        if one.name in ("self", "cls"):
            continue
        default = one.default
        if default is not inspect.Parameter.empty and not isinstance(default, str | int | float | bool | tuple | None):
            default = type("Shown", (), {"__repr__": lambda self: "..."})()
        plain.append(one.replace(annotation=inspect.Parameter.empty, default=default))
    return str(found.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def data_doc(path: str) -> str:
    known = {"hashlens.METHODS": "Every method by name: what it learns from, a summary and its paper."}
    return known[path]


# HTTP


def http_page() -> str:
    schema = openapi()
    parts = [
        "# HTTP",
        "`hashlens serve photos/` answers these requests; `/docs` of a running server has a summary, `/openapi.json`"
        " the schema. Errors are `application/problem+json` (RFC 9457) with one sentence in `detail`."
        " [Deploy](../deploy.md) has tokens, TLS and limits.",
        "```\ncurl -F image=@query.jpg -F k=10 http://127.0.0.1:8000/v1/search\n"
        'curl --json \'{"id": 17, "radius": 3}\' http://127.0.0.1:8000/v1/search\n```',
    ]
    for path, methods in schema["paths"].items():
        for method, facts in methods.items():
            parts += [f"## {method.upper()} {path}".replace("{", "\\{"), prose(facts.get("summary", "") + ".")]
            rows = [
                (one["name"], one["schema"], one["in"], one.get("description", ""))
                for one in facts.get("parameters", [])
            ]
            for media, body in facts.get("requestBody", {}).get("content", {}).items():
                properties = resolved(body.get("schema", {}), schema).get("properties", {})
                rows += [(name, one, media, one.get("description", "")) for name, one in properties.items()]
            if rows:
                lines = ["| field | in | type | meaning |", "|---|---|---|---|"]
                lines += [
                    f"| `{name}` | {place} | {cell(type_of(one))} | {cell(text)} |" for name, one, place, text in rows
                ]
                parts.append("\n".join(lines))
            problems = [status for status in facts["responses"] if int(status) >= 400]
            good = [status for status in facts["responses"] if status not in problems]
            refused = f"; refused with one sentence: {', '.join(problems)}" if problems else ""
            parts.append(f"Answered with {', '.join(good)}{refused}.")
    return "\n\n".join(parts)


def openapi() -> dict[str, Any]:
    """The schema of a real server for a folder of two images."""
    from hashlens.server.app import create_app

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "photos"
        folder.mkdir()
        for i, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)):
            Image.fromarray(pixels).save(folder / f"{i}.png")
        return create_app(hashlens.search_folder(folder, index=Path(place) / "index")).openapi()


def resolved(part: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in part:
        return schema["components"]["schemas"][part["$ref"].rpartition("/")[2]]
    return part


def type_of(schema: dict[str, Any]) -> str:
    kinds = [one.get("type", "") for one in schema.get("anyOf", [schema])]
    limits = [f"≥ {schema['minimum']}"] if "minimum" in schema else []
    limits += [f"≤ {schema['maximum']}"] if schema.get("maximum", 2**53) < 2**53 else []
    return " ".join([" or ".join(kind for kind in kinds if kind and kind != "null"), *limits])


# metrics and names


def metrics_page() -> str:
    rows = [
        f"| `{one.key}{'_N' if one.argument else ''}` | {one.title.format(n='N')} | {one.help} |" for one in METRICS
    ]
    definitions = [f"| `{name}` | {one.describe()} |" for name, one in DEFINITIONS.items()]
    return "\n\n".join([
        "# Metrics",
        "What `hashlens evaluate`, `train`, `compare` and `hashlens.evaluate_codes` report, by its key in JSON and CSV."
        " [MAP and its definitions](../concepts/map.md) explains the choices.",
        "\n".join(["| key | title | meaning |", "|---|---|---|", *rows]),
        "## Definitions of MAP",
        "\n".join(["| name | what it fixes |", "|---|---|", *definitions]),
    ])  # fmt: skip


def names_page() -> str:
    sources = "\n".join(f"- {text}" for text in SOURCES.values())
    networks = [f"| `{name}` | {text} |" for name, (_, text) in NETWORKS.items()]
    engines = []
    for name, (title, where) in ENGINES.items():
        cls = getattr(import_module(f"hashlens.index.engines.{name}"), title)
        engines += [f"### {name}", f"`--at`: {where}.", settings_table(describe(cls))]
    return "\n\n".join([
        "# Sources, protocols, networks, engines",
        "## Sources of images",
        "Every command that takes images takes any of these:",
        sources,
        "## Protocols",
        "`--protocol NAME`; [Protocols and leaks](../concepts/protocols.md) explains them.",
        "\n".join(f"- `{name}`" for name in PROTOCOLS),
        "## Networks",
        "`--backbone NAME` for methods that train a network, `--features NAME` for methods on features (`NAME@SIZE`"
        " sets the image size); `hf:NAME` is any vision model of the `transformers` package, and `gist` is GIST.",
        "\n".join(["| name | |", "|---|---|", *networks]),
        "## Engines",
        "`hashlens index copy INDEX --engine NAME --to WHERE`, then `hashlens search INDEX QUERY --engine NAME --at"
        " WHERE`; `--set name=value` changes a setting.",
        *engines,
    ])  # fmt: skip


# files

FORMATS = {  # module that owns a format: its title
    "hashlens.codes.bits": "Codes",
    "hashlens.codes.model": "Models",
    "hashlens.codes.folder": "Codes folders",
    "hashlens.index.folder": "Indexes",
    "hashlens.results.runs": "Runs",
    "hashlens.clicks.file": "Clicks",
    "hashlens.checksums": "Checksums",
}


def formats_page() -> str:
    parts = [
        "# File formats",
        "What hashlens writes, as the modules that own the formats describe it. Everything is numpy, Parquet,"
        " safetensors, ONNX, JSON or CSV: no pickle, nothing that other programs cannot read. Older formats are read,"
        " and upgraded when they are next written.",
    ]
    for name, title in FORMATS.items():
        module = import_module(name)
        parts.append(f"## {title}")
        if format := getattr(module, "FORMAT", ""):
            parts.append(f"Format: `{format}`.")
        parts.append(prose(inspect.cleandoc(module.__doc__ or "")))
    return "\n\n".join(parts)


# examples


def example_scripts() -> list[Path]:
    return sorted(path for path in EXAMPLES.glob("*.py") if not path.name.startswith("_"))


def examples_page() -> str:
    parts = [
        "# Examples",
        "Complete scripts that run in minutes, from the folder `examples/` of the source. `make docs-test` runs all but"
        " the one that reads all of CIFAR-10.",
    ]
    for path in example_scripts():
        text = path.read_text(encoding="utf-8")
        about = ast.get_docstring(ast.parse(text)) or ""
        title, _, rest = about.partition("\n")
        parts += [f"## {title.rstrip('.')}", prose(rest.strip())]
        if (picture := ROOT / "docs" / "figures" / "examples" / f"{path.stem}.png").exists():
            parts.append(f"![What {path.name} draws](../figures/examples/{picture.name})")
        if (printed := ROOT / "docs" / "figures" / "examples" / f"{path.stem}.txt").exists():
            shown = printed.read_text(encoding="utf-8").rstrip()
            parts.append(f"It prints, for example:\n\n```text\n{shown}\n```")
        parts.append(f"<details><summary>{path.name}</summary>\n\n```python\n{text.rstrip()}\n```\n\n</details>")
    return "\n\n".join(parts)


# text


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return re.sub(r"([|*<\[{])", r"\\\1", " ".join(str(text).split()))


def prose(text: str) -> str:
    """A docstring as Markdown: names in backticks and indented lines are code, all else is plain text."""
    blocks = []
    for block in re.split(r"\n\s*\n", text.strip()):
        if block.startswith(">>>"):
            blocks.append(f"```pycon\n{block}\n```")
        elif re.search(r"\n  +\S", block) and not block.startswith("    "):  # a tree or a list in columns
            blocks.append(f"```text\n{block}\n```")
        elif block.startswith("    "):
            code = textwrap.dedent(block)
            language = "bash" if code.startswith(("python ", "hashlens ")) else "text"
            blocks.append(f"```{language}\n{code}\n```")
        else:
            pieces = re.split(r"(`[^`]*`)", block)
            plain = [piece if piece.startswith("`") else re.sub(r"([*<\[{$#|~])", r"\\\1", piece) for piece in pieces]
            blocks.append("".join(plain))
    return "\n\n".join(blocks)


def write(folder: Path) -> None:
    """All pages below `folder`; one whose text has not changed is left alone, so that builds are quick."""
    found = pages()
    for path, text in found.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
    for file in folder.rglob("*.md"):
        if str(file.relative_to(folder)) not in found:
            file.unlink()

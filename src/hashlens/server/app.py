"""The application: a searcher in, the page and the HTTP interface out.

Nothing that a client sends is used as a path or an address: pictures of the index are asked for by id, and uploads are
decoded within limits, in a thread, and forgotten.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import jinja2
from fastapi import FastAPI, Request
from fastapi import Path as InPath
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

import hashlens
from hashlens.data.images import MAX_PIXELS
from hashlens.search import Searcher, UnreadablePicture
from hashlens.search.queries import parse_code
from hashlens.server.guard import FORM, LOOPBACK, Counts, Guard, too_large
from hashlens.server.metrics import as_text
from hashlens.server.problems import PROBLEM, Problem, describe_validation, explain_errors, printable
from hashlens.server.thumbs import Thumbs
from hashlens.server.workers import Workers
from hashlens.thumbnails import Pictures

MAX_ID = 2**63 - 1
SIZES = {"small": 240, "large": 800}  # pixels of thumbnails
FILES = {
    "/": ("index.html", "text/html"),
    "/style.css": ("style.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
Id = Annotated[int, InPath(ge=0, le=MAX_ID, description="Of a picture of the index.")]


@dataclass(frozen=True)
class Limits:
    """What one client can ask for."""

    max_upload: int = 20_000_000  # bytes of a picture
    max_pixels: int = MAX_PIXELS  # of a picture, from its first bytes
    max_k: int = 1_000  # results
    seconds: float = 30.0  # for one answer, its upload included
    waiting: int = 64  # requests that may wait for a thread
    thumbnails: int = 64_000_000  # bytes of thumbnails that are kept


class Asked(BaseModel):
    """What to search for besides a picture, and how."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: int | None = Field(None, ge=0, le=MAX_ID, description="A picture of the index.")
    code: str | None = Field(None, max_length=20_000, description="A code in hex, first bit highest.")
    k: int | None = Field(None, ge=1, description="How many results; 20 if neither this nor a radius is given.")
    radius: int | None = Field(None, ge=0, le=2**15, description="Only pictures at most so many bits away.")
    label: str | None = Field(None, max_length=1_000, description="Only pictures that have this label.")


class AskedByJson(Asked):
    @model_validator(mode="after")
    def _one_of_two(self) -> AskedByJson:
        if (self.id is None) == (self.code is None):
            raise ValueError("give either id or code")
        return self


def create_app(
    searcher: Searcher,
    *,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    pictures: Path | None = None,
    hosts: tuple[str, ...] | None = LOOPBACK,
) -> FastAPI:
    """The page and the HTTP interface for one index; relative paths of its pictures start at `pictures`.

    `hosts` are the names that the server is reached by, None for any.
    """
    searcher.max_pixels = min(searcher.max_pixels, limits.max_pixels)
    workers, counts = Workers(limits.waiting), Counts()
    thumbs = Thumbs(Pictures(searcher.index, pictures), limits.thumbnails)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await workers.run(searcher.warm_up)
        yield
        workers.close()

    app = FastAPI(
        title="hashlens", version=hashlens.__version__, lifespan=lifespan, docs_url=None, redoc_url=None,
        description="Search for similar pictures by short binary codes.",
    )  # fmt: skip
    app.add_middleware(Guard, counts=counts, max_upload=limits.max_upload, hosts=hosts)
    app.state.workers, app.state.counts, app.state.thumbs = workers, counts, thumbs
    explain_errors(app)
    _add_pages(app)
    _add_search(app, searcher, limits, workers)
    _add_items(app, searcher, thumbs, workers, limits)
    _add_facts(app, searcher, limits, counts, workers, thumbs)
    return app


def _add_search(app: FastAPI, searcher: Searcher, limits: Limits, workers: Workers) -> None:
    async def answer(request: Request, work: Any) -> JSONResponse:
        """Read what is asked, within the limits, and answer it from a thread."""
        upload = None
        try:
            with workers.reading():
                async with asyncio.timeout(limits.seconds):
                    upload, asked = await _read(request, limits)
                    return JSONResponse(await workers.run(work, upload, asked))
        except TimeoutError as error:
            late = f"no answer within {limits.seconds:g} seconds; try again"
            raise Problem(503, late, {"Retry-After": "5"}) from error
        finally:
            if upload is not None:
                upload.file.close()

    def query_of(upload: UploadFile | None, asked: Asked) -> tuple[Any, str | None]:
        if upload is not None:
            return upload.file.read(), upload.filename
        return (asked.id if asked.code is None else parse_code(asked.code, searcher.index.n_bits)), None

    def search_now(upload: UploadFile | None, asked: Asked) -> dict[str, Any]:
        query, name = query_of(upload, asked)
        k = asked.k or min(20 if asked.radius is None else limits.max_k, limits.max_k)
        if k > limits.max_k:
            raise Problem(422, f"k: at most {limits.max_k:,} results are given at once; ask for fewer")
        try:
            found = searcher.search(query, k, asked.radius, asked.label)
        except UnreadablePicture as error:
            raise _named(error, name) from error
        if name:
            found["query"]["name"] = printable(name)
        for hit in found["hits"]:
            hit["thumb"] = f"/v1/items/{hit['id']}/thumb"
        return found

    def encode_now(upload: UploadFile | None, asked: Asked) -> dict[str, Any]:
        query, name = query_of(upload, asked)
        try:
            found = searcher.encode(query)
        except UnreadablePicture as error:
            raise _named(error, name) from error
        packed = found.code.packed[0].tobytes()
        return {
            "code": packed.hex(),
            "base64": base64.b64encode(packed).decode(),
            "n_bits": found.code.n_bits,
            "timing_ms": {"decode": round(1000 * found.decode, 2), "encode": round(1000 * found.encode, 2)},
        }

    @app.post("/v1/search", summary="The nearest pictures of a picture, an id or a code", **_documented(True))
    async def search(request: Request) -> JSONResponse:
        return await answer(request, search_now)

    @app.post("/v1/encode", summary="The code of a picture", **_documented(False))
    async def encode(request: Request) -> JSONResponse:
        return await answer(request, encode_now)


async def _read(request: Request, limits: Limits) -> tuple[UploadFile | None, Asked]:
    """The picture, if one was sent, and everything else that was asked."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    try:
        if kind == "application/json":
            asked = json.loads(await _body(request))
            if not isinstance(asked, dict):
                raise Problem(422, 'send one JSON object, such as {"id": 5}; see /docs')
            return None, AskedByJson.model_validate(asked)
        if kind == "multipart/form-data":
            form = await _form(request)
            try:
                return _read_form(dict(form.multi_items()), limits)
            except BaseException:
                await form.close()
                raise
    except ValidationError as error:
        raise Problem(422, describe_validation(error.errors())) from error
    except (ValueError, RecursionError) as error:
        raise Problem(400, "the body is not JSON; see /docs") from error
    raise Problem(415, 'send the picture as multipart/form-data, in the field "image", or JSON with an id or a code')


async def _body(request: Request) -> bytes:
    """What is no picture is short."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > FORM:
            raise Problem(413, f"a body of JSON has at most {FORM:,} bytes", {"Connection": "close"})
    return bytes(body)


class _Interrupted(MultiPartException):
    """A body that does not arrive whole; the parser closes its files only for errors of its own kind."""

    def __init__(self, cause: BaseException):
        super().__init__("interrupted")
        self.cause = cause


async def _form(request: Request) -> FormData:
    async def chunks() -> AsyncGenerator[bytes, None]:
        try:
            async for chunk in request.stream():
                yield chunk
        except (Exception, asyncio.CancelledError) as error:
            raise _Interrupted(error) from error

    try:
        # more than a megabyte is not kept in memory but in a file without a name
        return await MultiPartParser(request.headers, chunks(), max_files=1, max_fields=8, max_part_size=20_000).parse()
    except _Interrupted as interrupted:
        raise interrupted.cause from None
    except (MultiPartException, KeyError) as error:
        why = getattr(error, "message", "no boundary")
        raise Problem(400, f"the form cannot be read ({why}); see /docs") from error


def _read_form(fields: dict[str, Any], limits: Limits) -> tuple[UploadFile, Asked]:
    upload = fields.pop("image", None)
    if not isinstance(upload, UploadFile):
        raise Problem(422, "image: send the picture as a file in this field, such as curl -F image=@query.jpg")
    if (upload.size or 0) > limits.max_upload:
        raise Problem(413, too_large(limits.max_upload))
    values = {name: value for name, value in fields.items() if value != ""}
    return upload, Asked.model_validate({n: _whole(v) if n in ("k", "radius") else v for n, v in values.items()})


def _whole(text: Any) -> Any:
    """Forms hold only text."""
    return int(text) if isinstance(text, str) and re.fullmatch(r"-?[0-9]{1,19}", text) else text


def _named(error: UnreadablePicture, name: str | None) -> UnreadablePicture:
    return UnreadablePicture(error.message.replace("this is", f"'{printable(name)}' is", 1) if name else error.message)


def _add_items(app: FastAPI, searcher: Searcher, thumbs: Thumbs, workers: Workers, limits: Limits) -> None:
    @app.get("/v1/items/{id}", summary="Path, labels and code of a picture", responses={404: PROBLEM, 422: PROBLEM})
    async def item(id: Id) -> JSONResponse:
        return JSONResponse(searcher.now().item(id))

    @app.get(
        "/v1/items/{id}/thumb",
        summary="The picture, small; if its file is gone, a drawing that says so",
        response_class=Response,
        responses={200: {"content": {"image/jpeg": {}}}, 404: {"content": {"image/svg+xml": {}}}, 422: PROBLEM},
    )
    async def thumb(id: Id, size: str = "small") -> Response:
        if size not in SIZES:
            raise Problem(422, "size: small or large")
        now = searcher.now()
        path = now.item(id)["path"]

        def make() -> bytes | None:
            thumbs.pictures.follow(now.index)
            return thumbs.make(id, path, SIZES[size])

        content = thumbs.kept(id, SIZES[size]) or await workers.run(make)
        if content is None:
            return Response(_page("gone.svg"), 404, media_type="image/svg+xml", headers={"Cache-Control": "no-store"})
        return Response(content, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})


def _add_facts(
    app: FastAPI, searcher: Searcher, limits: Limits, counts: Counts, workers: Workers, thumbs: Thumbs
) -> None:
    kept: dict[str, Any] = {}

    def info_now() -> dict[str, Any]:
        now = searcher.now()
        if kept.get("of") is not now.index:
            few = len(now.index) <= 10_000_000  # of more, listing the labels takes seconds
            info = {
                **now.facts(),
                "takes_pictures": now.takes_pictures,
                "labels": now.labels() if few else [],
                "examples": now.examples(),
                "limits": {"max_upload": limits.max_upload, "max_pixels": limits.max_pixels, "max_k": limits.max_k},
                "version": hashlens.__version__,
            }
            kept.update(of=now.index, info=info)
        return kept["info"]

    @app.get("/v1/info", summary="What the index holds, and the limits")
    async def info() -> JSONResponse:
        return JSONResponse(await workers.run(info_now))

    @app.get("/healthz", summary="Whether the server is alive")
    async def healthz() -> dict[str, bool]:
        return {"alive": True}

    @app.get("/readyz", summary="Whether it can answer now", responses={503: PROBLEM})
    async def readyz() -> dict[str, bool]:
        workers.require_room()
        return {"ready": True}

    @app.get("/metrics", summary="Counters for Prometheus", response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse(as_text(counts, len(searcher.index), workers, thumbs))


def _add_pages(app: FastAPI) -> None:
    files = {path: (_page(name), kind) for path, (name, kind) in FILES.items()}

    @app.get("/", include_in_schema=False)
    @app.get("/style.css", include_in_schema=False)
    @app.get("/page.js", include_in_schema=False)
    @app.get("/icon.svg", include_in_schema=False)
    async def page(request: Request) -> Response:
        content, kind = files[request.url.path]
        return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> HTMLResponse:
        template = jinja2.Environment(autoescape=True).from_string(_page("docs.html.j2").decode())
        return HTMLResponse(
            template.render(paths=app.openapi()["paths"], version=hashlens.__version__, base=request.base_url)
        )


def _page(name: str) -> bytes:
    return resources.files("hashlens.server").joinpath("page", name).read_bytes()


def _documented(search: bool) -> dict[str, Any]:
    """What FastAPI cannot find out by itself: one address takes a picture or JSON."""
    schema = AskedByJson.model_json_schema()
    fields = schema["properties"]
    how = {name: _optional(fields[name]) for name in ("k", "radius", "label")}
    image = {"type": "string", "format": "binary", "description": "The picture, a file."}
    form = {"type": "object", "required": ["image"], "properties": {"image": image, **(how if search else {})}}
    asked = {name: _optional(fields[name]) for name in ("id", "code")}
    one = [{"required": [name], "properties": {name: value}} for name, value in asked.items()]
    by_json = {"type": "object", "oneOf": one, "properties": {**how, **asked}}
    body = {
        "required": True,
        "content": {
            "multipart/form-data": {"schema": form},
            "application/json": {"schema": by_json},
        },
    }
    responses = {status: PROBLEM for status in (400, 404, 409, 413, 415, 422, 503)}
    return {"openapi_extra": {"requestBody": body}, "responses": responses}


def _optional(schema: dict[str, Any]) -> dict[str, Any]:
    """A field that may be left out, but is not null."""
    kind = next(kind for kind in schema["anyOf"] if kind["type"] != "null")
    return {**kind, "description": schema["description"]}

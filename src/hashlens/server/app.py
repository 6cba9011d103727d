"""The application: a searcher in, the page and the HTTP interface out.

Nothing that a client sends is used as a path or an address: images of the index are requested by id, and uploads are
decoded within limits, in a thread, and discarded.
"""

import asyncio
import base64
import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import jinja2
from cachetools import LRUCache
from fastapi import FastAPI, Request
from fastapi import Path as InPath
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, generate_latest
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException

import hashlens
from hashlens.data.thumbnails import thumbnail
from hashlens.index.catalog import Catalog
from hashlens.search import Searcher
from hashlens.search.queries import QueryImage, parse_code
from hashlens.server.guard import LOOPBACK, Guard
from hashlens.server.limits import MAX_FIELD, MAX_FIELDS, MAX_ID, USUAL, Limits
from hashlens.server.problems import PROBLEM, explain_errors, printable
from hashlens.server.workers import Workers

SIZES = {"small": 240, "large": 800}  # pixels of thumbnails
FILES = {
    "/": ("index.html", "text/html"),
    "/style.css": ("style.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
Id = Annotated[int, InPath(ge=0, le=MAX_ID, description="Id of an image of the index.")]


class Asked(BaseModel):
    """A search other than its uploaded image."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: int | None = Field(None, ge=0, le=MAX_ID, description="An image of the index.")
    code: str | None = Field(None, max_length=MAX_FIELD, description="A code in hex, first bit highest.")
    k: int | None = Field(None, ge=1, description="Number of results; 20 if neither this nor a radius is given.")
    radius: int | None = Field(None, ge=0, le=2**15, description="Maximum Hamming distance.")
    label: str | None = Field(None, max_length=1_000, description="Search only images with this label.")
    histogram: bool = Field(False, description="Count the images at each distance, which takes longer.")


def create_app(
    searcher: Searcher,
    *,
    limits: Limits = USUAL,
    images: Path | None = None,
    hosts: tuple[str, ...] | None = LOOPBACK,
    ready: Callable[[], Any] = lambda: None,
) -> FastAPI:
    """The page and the HTTP interface for one index; `images` is the folder that its images were moved to.

    `hosts` are the names that the server answers to, None for any; `ready` is called before the first request.
    """
    searcher.max_pixels = min(searcher.max_pixels, limits.max_pixels)
    workers = Workers(limits.max_waiting)
    thumbs: LRUCache[tuple[int, int], bytes] = LRUCache(limits.thumbnail_cache, getsizeof=len)
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    for name, meaning, value in (
        ("hashlens_images", "Images in the index.", lambda: len(searcher.index)),
        ("hashlens_busy", "Requests running or waiting for a thread.", lambda: workers.busy),
        ("hashlens_thumbnail_bytes", "Bytes of cached thumbnails.", lambda: thumbs.currsize),
    ):
        Gauge(name, meaning, registry=registry).set_function(value)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await workers.run(searcher.warm_up)
        ready()
        yield
        workers.close()

    app = FastAPI(
        title="hashlens", version=hashlens.__version__, lifespan=lifespan, docs_url=None, redoc_url=None,
        description="Search for similar images by short binary codes.",
    )  # fmt: skip
    app.add_middleware(Guard, registry=registry, limits=limits, hosts=hosts)
    app.state.thumbs = thumbs
    explain_errors(app)
    _add_pages(app)
    _add_search(app, searcher, limits, workers)
    _add_items(app, searcher, thumbs, workers, images)
    _add_facts(app, searcher, limits, registry, workers)
    return app


def _add_search(app: FastAPI, searcher: Searcher, limits: Limits, workers: Workers) -> None:
    async def answer(request: Request, work: Any) -> JSONResponse:
        """Read the request within the limits and answer it in a thread."""
        kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
        if kind not in ("application/json", "multipart/form-data"):
            wanted = 'send the image as multipart/form-data, in the field "image", or JSON with an id or a code'
            raise HTTPException(415, wanted)
        # of JSON, the form is empty; an image above one megabyte is kept in an unnamed file instead of memory
        form = request.form(max_files=1, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD)
        try:
            with workers.reading():
                async with asyncio.timeout(limits.timeout), form as fields:
                    by_json = kind == "application/json"
                    upload, asked = (None, await _from_json(request)) if by_json else _from_form(fields, limits)
                    return JSONResponse(await workers.run(work, upload, asked))
        except TimeoutError as error:
            late = f"no answer within {limits.timeout:g} seconds; try again"
            raise HTTPException(503, late, {"Retry-After": "5"}) from error

    def query_of(upload: UploadFile | None, asked: Asked) -> Any:
        if upload is not None:
            name = printable(upload.filename) if upload.filename else None
            return QueryImage(upload.file.read(), searcher.max_pixels, name)
        return asked.id if asked.code is None else parse_code(asked.code, searcher.index.n_bits)

    def search_now(upload: UploadFile | None, asked: Asked) -> dict[str, Any]:
        k = asked.k or min(20 if asked.radius is None else limits.max_k, limits.max_k)
        if k > limits.max_k:
            raise HTTPException(422, f"k must be <= {limits.max_k:,}, got {k:,}")
        found = searcher.search(query_of(upload, asked), k, asked.radius, asked.label, asked.histogram)
        for hit in found["hits"]:
            hit["thumb"] = f"/v1/items/{hit['id']}/thumb"
        return found

    def encode_now(upload: UploadFile | None, asked: Asked) -> dict[str, Any]:
        found = searcher.encode(query_of(upload, asked))
        packed = found.code.packed[0].tobytes()
        return {
            "code": packed.hex(),
            "base64": base64.b64encode(packed).decode(),
            "n_bits": found.code.n_bits,
            "timing_ms": {"decode": round(1000 * found.decode, 2), "encode": round(1000 * found.encode, 2)},
        }

    @app.post(
        "/v1/search",
        summary="The nearest images to an image, an id or a code",
        **_documented("k", "radius", "label", "histogram"),
    )
    async def search(request: Request) -> JSONResponse:
        return await answer(request, search_now)

    @app.post("/v1/encode", summary="The code of an image", **_documented())
    async def encode(request: Request) -> JSONResponse:
        return await answer(request, encode_now)


def _from_form(form: FormData, limits: Limits) -> tuple[UploadFile, Asked]:
    fields: dict[str, Any] = {name: value for name, value in form.multi_items() if value != ""}
    upload = fields.pop("image", None)
    if not isinstance(upload, UploadFile):
        raise HTTPException(422, "image: send the image as a file in this field, such as curl -F image=@query.jpg")
    if (upload.size or 0) > limits.max_upload:
        raise limits.too_large()
    return upload, Asked.model_validate_strings(fields)


async def _from_json(request: Request) -> Asked:
    try:
        body = await request.json()
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, "not JSON") from error
    asked = Asked.model_validate(body if isinstance(body, dict) else {})
    if (asked.id is None) == (asked.code is None):
        raise HTTPException(422, 'give either id or code, such as {"id": 5}; see /docs')
    return asked


def _add_items(
    app: FastAPI, searcher: Searcher, thumbs: LRUCache[tuple[int, int], bytes], workers: Workers, images: Path | None
) -> None:
    @app.get("/v1/items/{id}", summary="Path, labels and code of an image", responses={404: PROBLEM, 422: PROBLEM})
    async def item(id: Id) -> JSONResponse:
        return JSONResponse(searcher.now().item(id))

    @app.get(
        "/v1/items/{id}/thumb",
        summary="The image, small; if its file is missing, a drawing that says so",
        response_class=Response,
        responses={200: {"content": {"image/jpeg": {}}}, 404: {"content": {"image/svg+xml": {}}}, 422: PROBLEM},
    )
    async def thumb(id: Id, size: str = "small") -> Response:
        if size not in SIZES:
            raise HTTPException(422, "size must be small or large")
        now = searcher.now()
        path = now.item(id)["path"]

        def make() -> bytes:
            file, image = io.BytesIO(), thumbnail(now.index, path, SIZES[size], images)
            if image is not None:
                image.save(file, "JPEG", quality=80)
            return file.getvalue()

        content = thumbs.get((id, SIZES[size]), b"") or await workers.run(make)
        if not content:
            return Response(_page("gone.svg"), 404, media_type="image/svg+xml", headers={"Cache-Control": "no-store"})
        with suppress(ValueError):  # larger than the whole cache, which only the event loop uses
            thumbs[id, SIZES[size]] = content
        return Response(content, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})


def _add_facts(app: FastAPI, searcher: Searcher, limits: Limits, registry: CollectorRegistry, workers: Workers) -> None:
    @lru_cache(1)
    def items(index: Catalog) -> dict[str, Any]:
        few = len(index) <= 10_000_000  # beyond that, listing the labels takes seconds
        return {"labels": index.labels() if few else [], "examples": index.examples()}

    def info_now() -> dict[str, Any]:
        now = searcher.now()
        shown = {"max_upload": limits.max_upload, "max_pixels": limits.max_pixels, "max_k": limits.max_k}
        about = {"takes_images": now.takes_images, "limits": shown, "version": hashlens.__version__}
        return now.facts() | items(now.index) | about

    @app.get("/v1/info", summary="What the index contains, and the limits")
    async def info() -> JSONResponse:
        return JSONResponse(await workers.run(info_now))

    @app.get("/healthz", summary="Whether the server is alive")
    async def healthz() -> dict[str, bool]:
        return {"alive": True}

    @app.get("/readyz", summary="Whether the server can answer now", responses={503: PROBLEM})
    async def readyz() -> dict[str, bool]:
        workers.require_room()
        return {"ready": True}

    @app.get("/metrics", summary="Counters for Prometheus", response_class=PlainTextResponse)
    async def read_metrics() -> PlainTextResponse:
        return PlainTextResponse(generate_latest(registry))


def _add_pages(app: FastAPI) -> None:
    files = {path: (_page(name), kind) for path, (name, kind) in FILES.items()}

    async def page(request: Request) -> Response:
        content, kind = files[request.url.path]
        return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

    for path in FILES:
        app.get(path, include_in_schema=False)(page)

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> HTMLResponse:
        template = jinja2.Environment(autoescape=True).from_string(_page("docs.html.j2").decode())
        return HTMLResponse(
            template.render(paths=app.openapi()["paths"], version=hashlens.__version__, base=request.base_url)
        )


def _page(name: str) -> bytes:
    return resources.files("hashlens.server").joinpath("page", name).read_bytes()


def _documented(*in_form: str) -> dict[str, Any]:
    """What FastAPI cannot infer: an address takes an image and these fields in a form, or JSON with an id or a code."""
    asked = Asked.model_json_schema()
    image = {"type": "string", "format": "binary", "description": "The image, a file."}
    fields = {"image": image} | {name: asked["properties"][name] for name in in_form}
    content = {
        "multipart/form-data": {"schema": {"type": "object", "required": ["image"], "properties": fields}},
        "application/json": {"schema": asked | {"oneOf": [{"required": ["id"]}, {"required": ["code"]}]}},
    }
    responses = {status: PROBLEM for status in (400, 404, 409, 413, 415, 422, 503)}
    return {"openapi_extra": {"requestBody": {"required": True, "content": content}}, "responses": responses}

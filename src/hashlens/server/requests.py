"""Requests: forms and JSON in, read within the limits, their checked contents out."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Path as InPath
from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException

from hashlens.clicks.file import MAX_MARKS
from hashlens.files import storage_errors
from hashlens.server.limits import MAX_FIELD, MAX_FIELDS, MAX_ID, Limits
from hashlens.server.problems import PROBLEM
from hashlens.server.service import Service

Id = Annotated[int, InPath(ge=0, le=MAX_ID, description="Id of an image of the index.")]

MarkedId = Annotated[int, Field(ge=0, le=MAX_ID)]


class Asked(BaseModel):
    """A search other than its uploaded image."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: int | None = Field(None, ge=0, le=MAX_ID, description="An image of the index.")
    code: str | None = Field(
        None, max_length=MAX_FIELD, description="A code in hex, first bit highest; its second code may follow."
    )
    k: int | None = Field(None, ge=1, description="Number of results; 20 if neither this nor a radius is given.")
    radius: int | None = Field(None, ge=0, le=2**15, description="Maximum Hamming distance.")
    label: str | None = Field(None, max_length=1_000, description="Search only images with this label.")
    histogram: bool = Field(False, description="Count the images at each distance, which takes longer.")
    by: Literal["first", "both", "second"] | None = Field(
        None,
        description="Code to search by; both (the default if there are second codes): ties ordered by the second code.",
    )

    def how_many(self, limits: Limits) -> int:
        k = self.k or min(20 if self.radius is None else limits.max_k, limits.max_k)
        if k > limits.max_k:
            raise HTTPException(422, f"k must be <= {limits.max_k:,}, got {k:,}")
        return k


class Added(BaseModel):
    """A new image other than its file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    labels: str = Field("", max_length=1_000, description="Its labels, separated by semicolons.")

    def split(self) -> list[str]:
        return [label for label in map(str.strip, self.labels.split(";")) if label]


class Clicks(BaseModel):
    """Marks on the results of one query, by ids."""

    model_config = ConfigDict(extra="forbid", strict=True)

    query: int = Field(ge=0, le=MAX_ID, description="The image of the index that was searched for.")
    more: list[MarkedId] = Field(min_length=1, max_length=MAX_MARKS, description="Results that are more like it.")
    less: list[MarkedId] = Field(min_length=1, max_length=MAX_MARKS, description="Results that are less like it.")


async def with_image(
    request: Request, service: Service, work: Callable[[UploadFile, dict[str, Any]], Awaitable[Any]]
) -> Any:
    """Read a form with an image and call `work` on it; an image above 1 MB is kept in an unnamed file meanwhile."""
    form = request.form(max_files=1, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD)
    with service.uploads.reading(), storage_errors(Path(tempfile.gettempdir())):
        async with timeout(service.limits), form as fields:
            return await work(*_from_form(fields, service.limits))


@asynccontextmanager
async def timeout(limits: Limits) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(limits.timeout):
            yield
    except TimeoutError as error:
        late = f"no answer within {limits.timeout:g} seconds; try again"
        raise HTTPException(503, late, {"Retry-After": "5"}) from error


def _from_form(form: FormData, limits: Limits) -> tuple[UploadFile, dict[str, Any]]:
    fields: dict[str, Any] = {name: value for name, value in form.multi_items() if value != ""}
    upload = fields.pop("image", None)
    if not isinstance(upload, UploadFile):
        raise HTTPException(422, "image: send the image as a file in this field, such as curl -F image=@query.jpg")
    if (upload.size or 0) > limits.max_upload:
        raise limits.too_large()
    return upload, fields


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").split(";")[0].strip().lower()


async def json_object(request: Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, "not JSON") from error
    return body if isinstance(body, dict) else {}


async def from_json(request: Request) -> Asked:
    asked = Asked.model_validate(await json_object(request))
    if (asked.id is None) == (asked.code is None):
        raise HTTPException(422, 'send either id or code, such as {"id": 5}; see /docs')
    return asked


STATUSES = (400, 401, 404, 408, 409, 413, 415, 422, 503, 507)


def documented(*in_form: str) -> dict[str, Any]:
    """OpenAPI facts that FastAPI cannot infer: a form with an image and these fields, or JSON with an id or a code."""
    asked = Asked.model_json_schema()
    body = _form({name: asked["properties"][name] for name in in_form})
    body["application/json"] = {"schema": asked | {"oneOf": [{"required": ["id"]}, {"required": ["code"]}]}}
    responses = {status: PROBLEM for status in STATUSES}
    return {"openapi_extra": {"requestBody": {"required": True, "content": body}}, "responses": responses}


def documented_add() -> dict[str, Any]:
    body = _form(Added.model_json_schema()["properties"])
    responses = {status: PROBLEM for status in (*STATUSES, 403)} | {200: {"description": "It was there already."}}
    return {"openapi_extra": {"requestBody": {"required": True, "content": body}}, "responses": responses}


def documented_clicks() -> dict[str, Any]:
    body = {"application/json": {"schema": Clicks.model_json_schema()}}
    responses = {status: PROBLEM for status in (400, 401, 403, 404, 413, 415, 422, 503, 507)}
    return {"openapi_extra": {"requestBody": {"required": True, "content": body}}, "responses": responses}


def _form(fields: dict[str, Any]) -> dict[str, Any]:
    image = {"type": "string", "format": "binary", "description": "The image, a file."}
    schema = {"type": "object", "required": ["image"], "properties": {"image": image} | fields}
    return {"multipart/form-data": {"schema": schema}}

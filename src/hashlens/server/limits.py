"""Limits of the server: what clients can send and request; options of `hashlens serve` set the fields of `Limits`."""

from dataclasses import dataclass

from starlette.exceptions import HTTPException

MAX_ID = 2**63 - 1
MAX_TEXT = 65_536  # bytes of a request besides its image
MAX_FIELD = 20_000  # bytes of a field of a form, or characters of a code
MAX_FIELDS = 8
MAX_ITEMS = 500  # per page of all images
HEADER_SECONDS = 10  # for the headers of a request, or idle before them
BODY_SECONDS = 5  # for a body, plus time for its bytes:
BODY_RATE = 2_000  # bytes per second
SEND_SECONDS = 30  # for a client to take sent data
SHUTDOWN_SECONDS = 7  # for requests in progress, when the server is stopped
KILL_SECONDS = 9  # after which it is killed; containers get 10


@dataclass(frozen=True)
class Limits:
    max_upload: int = 20_000_000  # bytes per image
    max_pixels: int = 25_000_000  # per image, according to its header
    decode_seconds: float = 5.0  # of CPU time per image
    max_k: int = 1_000  # results per search
    timeout: float = 30.0  # seconds per request, including its upload
    max_waiting: int = 64  # waiting requests per lane
    max_connections: int = 1_000
    per_address: int = 100  # connections, and requests in progress
    thumbnail_cache: int = 64_000_000  # bytes
    scrub_seconds: float = 600.0  # between two checks of the index by its checksums; 0: none

    def require_body(self, n_bytes: int, with_image: bool) -> None:
        """Refuse a body with more bytes than allowed."""
        if n_bytes > MAX_TEXT + (self.max_upload if with_image else 0):
            raise self.too_large(with_image)

    def too_large(self, with_image: bool = True) -> HTTPException:
        found = f"the image is too large; the limit is {self.max_upload / 1e6:g} MB (server option --max-upload)"
        if not with_image:
            found = f"the request is too large; without an image the limit is {MAX_TEXT:,} bytes"
        return HTTPException(413, found, {"Connection": "close"})


USUAL = Limits()


def busy(what: str = "the server is busy", seconds: int = 1) -> HTTPException:
    """The error for refusing early rather than late; tells the client when to retry."""
    return HTTPException(503, f"{what}; try again in {seconds} s", {"Retry-After": str(seconds)})

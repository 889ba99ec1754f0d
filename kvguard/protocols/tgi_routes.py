"""What passes to TGI. Its metrics, and the control of whatever it may be built with, do not."""

from typing import Final

from kvguard.protocols import tgi_chat, tgi_completions, tgi_generate, tgi_invocations, tgi_vertex
from kvguard.protocols.openai_errors import OPENAI_ERRORS
from kvguard.protocols.routes import MODELS, RouteTable, by_path
from kvguard.protocols.tgi_errors import TGI_ERRORS

TGI: Final = RouteTable(
    generating=by_path(
        *tgi_generate.ROUTES, tgi_chat.ROUTE, tgi_completions.ROUTE, tgi_invocations.ROUTE, tgi_vertex.ROUTE
    ),
    reads={
        "/": "GET",
        "/info": "GET",
        "/health": "GET",
        "/ping": "GET",
        MODELS: "GET",
        "/api-doc/openapi.json": "GET",
        "/tokenize": "POST",
        "/chat_tokenize": "POST",
    },
    below={"/v1": OPENAI_ERRORS},
    elsewhere=TGI_ERRORS,
)

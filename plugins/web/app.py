"""The FastAPI application that Airflow's API server mounts at ``/paceline``: the pages' API and script."""

from __future__ import annotations

from fastapi import FastAPI, Response
from fastapi.staticfiles import StaticFiles

from paceline import __version__

from . import bundle, champions, deadline, grants, history, jobs, model, overview, pool, pools, results, steering
from .airflow_internals import conf


def create_app() -> FastAPI:
    """Create the application.

    Every route checks Airflow's login and permissions, except the static files and ``steering``, which checks secrets.
    """
    documented = conf.getboolean("api", "enable_swagger_ui")
    app = FastAPI(
        title="Paceline",
        version=__version__,
        description="Training jobs, their progress and deadlines.",
        docs_url="/docs" if documented else None,
        redoc_url="/redoc" if documented else None,
        openapi_url="/openapi.json" if documented else None,
    )
    for module in (jobs, results, deadline, overview, champions, model, history, pool, pools, grants, steering):
        app.include_router(module.router, prefix="/api")

    @app.get(f"/static/{bundle.SCRIPT}", include_in_schema=False)
    def script(version: str = "") -> Response:
        """Return the pages' script. Browsers may cache the response, because the URL contains the script's version.

        During a rolling upgrade, the URL may name a version other than the server's; browsers must not cache then.
        """
        text = bundle.read_script()
        caching = "public, max-age=31536000, immutable" if version == bundle.version(text) else "no-store"
        return Response(text, media_type="text/javascript", headers={"Cache-Control": caching})

    app.mount("/static", StaticFiles(directory=bundle.STATIC, check_dir=False), name="static")
    return app

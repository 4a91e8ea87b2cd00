"""The application that Airflow's API server mounts at ``/paceline``: what the pages ask for, and their script."""

from __future__ import annotations

from fastapi import FastAPI, Response
from fastapi.staticfiles import StaticFiles

from paceline import __version__

from . import bundle, deadline, overview, pool, trainings


def create_app() -> FastAPI:
    """Make the application. All but its static files asks Airflow who is there and what they may do."""
    app = FastAPI(
        title="Paceline", version=__version__, description="Trainings: how they do, and when they are to end."
    )
    for part in (trainings, deadline, overview, pool):
        app.include_router(part.router, prefix="/api")

    @app.get(f"/static/{bundle.SCRIPT}", include_in_schema=False)
    def script(version: str = "") -> Response:
        """The pages' script; its address changes with it, so that browsers may keep it.

        While servers are upgraded one by one, the one that is asked may have another than was named.
        """
        text = bundle.read_script()
        keep = "public, max-age=31536000, immutable" if version == bundle.version(text) else "no-store"
        return Response(text, media_type="text/javascript", headers={"Cache-Control": keep})

    app.mount("/static", StaticFiles(directory=bundle.STATIC, check_dir=False), name="static")
    return app

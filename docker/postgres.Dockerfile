# PostgreSQL for docker-compose.yaml, on the official image or on any base with Debian's package `postgresql`
# (docker/base-image NAME postgresql).
ARG BASE=postgres:16
FROM ${BASE}
COPY docker/postgres-start /usr/local/bin/paceline-postgres
RUN mkdir -p /var/lib/paceline-postgres && chown postgres:postgres /var/lib/paceline-postgres
ENV PGDATA=/var/lib/paceline-postgres/data
USER postgres
STOPSIGNAL SIGINT
ENTRYPOINT ["paceline-postgres"]

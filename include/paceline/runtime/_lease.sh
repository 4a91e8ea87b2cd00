#!/bin/sh
# Run a container's command, and end it unless its lease is renewed. Usage: lease.sh FOLDER PERIOD GRACE COMMAND...
#
# FOLDER/lease contains a number that each renewal changes, and the seconds that the lease lasts. The job cannot write to
# FOLDER, only to FOLDER/own, where a file tells later processes that the lease has ended. The watcher compares the file
# every PERIOD seconds, so that no clock matters, and is not a child of the command, which may wait for all its children.
folder=$1 period=$2 grace=$3
shift 3
rm -f "$folder/own/ended"
(
    (
        last='' waited=0
        while sleep "$period"; do
            read -r renewal seconds <"$folder/lease" || continue
            if [ "$renewal" != "$last" ]; then
                last=$renewal waited=0
                continue
            fi
            waited=$((waited + period))
            [ "$waited" -ge "$seconds" ] || continue
            : >"$folder/own/ended"
            kill -TERM $$
            sleep "$grace"
            kill -KILL $$
            exit
        done
    ) &
) </dev/null >/dev/null 2>&1
exec "$@"

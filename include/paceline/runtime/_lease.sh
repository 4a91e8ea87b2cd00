#!/bin/sh
# Run a container's command, and end it unless its lease is renewed. Usage: lease.sh FOLDER PERIOD GRACE COMMAND...
#
# FOLDER/lease contains a number that each renewal changes, and the seconds that the lease lasts. The job cannot write to
# FOLDER, only to FOLDER/own, where a file tells later processes that the lease has ended. The watcher compares the file
# every PERIOD seconds, so that no clock matters, and is not a child of the command, which may wait for all its children.
folder=$1 period=$2 grace=$3
shift 3

# Watch the lease of a process. At the job's limit on processes, a shell that cannot start `sleep` exits: replace it.
watch() {
    pid=$1 last=$2 waited=$3 failed=$4
    trap '[ "$failed" -ge 10000 ] || exec /bin/sh "$0" "$folder" "$period" "$grace" --watch "$pid" "$last" "$waited" $((failed + 1))' EXIT
    while sleep "$period"; do
        failed=0
        read -r renewal seconds <"$folder/lease" || continue
        if [ "$renewal" != "$last" ]; then
            last=$renewal waited=0
            continue
        fi
        waited=$((waited + period))
        [ "$waited" -ge "$seconds" ] || continue
        # Not `:`, after whose failed redirection a shell exits. `<>` does not wait for a reader of a pipe.
        true <>"$folder/own/ended"
        kill -TERM "$pid"
        sleep "$grace"
        kill -KILL "$pid"
        trap - EXIT
        exit
    done
}

if [ "$1" = --watch ]; then
    shift
    watch "$@"
    exit
fi
rm -f "$folder/own/ended"
(watch $$ '' 0 0 &) </dev/null >/dev/null 2>&1
exec "$@"

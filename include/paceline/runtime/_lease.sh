#!/bin/sh
# Run a container's command, and end it unless its lease is renewed. Usage: lease.sh FOLDER PERIOD GRACE COMMAND...
#
# FOLDER/lease contains a number that each renewal changes, and the seconds that the lease lasts. The job cannot write to
# FOLDER, only to FOLDER/own, where a file tells later processes that the lease has ended. The watcher compares the file
# every PERIOD seconds, so that no clock matters, and is not a child of the command, which may wait for all its children.
folder=$1 period=$2 grace=$3
shift 3

# Replace this shell by one that does a step.
go_on() {
    exec /bin/sh "$0" "$folder" "$period" "$grace" "$@"
}

# Do a step after some seconds. At the job's limit on processes, a shell that cannot start `sleep` exits.
after() {
    delay=$1
    shift
    step=$*
    trap wait_without_process EXIT
    sleep "$delay" && go_on $step
    exit
}

# Let Python wait in this process. Without Python, try again at once.
wait_without_process() {
    waits='import os, sys, time; time.sleep(float(sys.argv[1])); os.execv(sys.argv[2], sys.argv[2:])'
    command -v python3 && exec python3 -I -S -c "$waits" "$delay" /bin/sh "$0" "$folder" "$period" "$grace" $step
    go_on --after "$delay" $step
}

# Compare the lease with the last renewal, since which the watcher has waited so many seconds.
watch() {
    pid=$1 last=$2 waited=$3
    read -r renewal seconds <"$folder/lease" || after "$period" --watch "$pid" "$last" "$waited"
    if [ "$renewal" != "$last" ]; then
        waited=0
    elif [ "$waited" -ge "$seconds" ]; then
        # Not `:`, after whose failed redirection a shell exits. `<>` does not wait for a reader of a pipe.
        true <>"$folder/own/ended"
        kill -TERM "$pid"
        after "$grace" --kill "$pid"
    fi
    after "$period" --watch "$pid" "$renewal" $((waited + period))
}

case $1 in
--after) shift && after "$@" ;;
--watch) shift && watch "$@" ;;
--kill) kill -KILL "$2" ;;
*)
    rm -f "$folder/own/ended"
    (go_on --watch $$ - 0 &) </dev/null >/dev/null 2>&1
    exec "$@"
    ;;
esac

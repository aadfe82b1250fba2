#!/bin/bash
# Takes the place of a task's shell, in the task's folder. In each launch one task fails: the first of
# a process that has not failed before, or of FAIL_IN. FAILURES is a folder, in the launch folder,
# that keeps note. A task of the process WAIT_IN is under way meanwhile, and ends after it.
name=$(sed -n "s/^### name: '\(.*\)'$/\1/p" .command.run)
process=${name##*:}
process=${process%% (*}

wait_for_the_end() {
    until grep -q 'Execution cancelled' "$FAILURES/../.nextflow.log"; do sleep 0.1; done
}

if [[ $process == "${WAIT_IN:-}" ]]; then
    touch "$FAILURES/waits"
    wait_for_the_end
elif [[ $process == "${FAIL_IN:-$process}" && ! -e $FAILURES/$process ]]; then
    # What is not this launch's failure stays for another.
    mkdir "$FAILURES/launch" 2> /dev/null || { wait_for_the_end && exit 1; }
    until [[ -z ${WAIT_IN:-} || -e $FAILURES/waits ]]; do sleep 0.1; done
    touch "$FAILURES/$process"
    echo "linum_$process.py: error: tile (1, 2) cannot be read" >&2
    exit 1
fi
exec /bin/bash "$@"

// Whether a run still has something to do.

// Wait until no task has waited or run for ten seconds, or one has failed; return whether none has failed.
def idle_without_failure() {
    def idle = 0
    (1..100000000).find {
        sleep(1000)
        def stats = workflow.stats
        idle = stats.pendingCount + stats.submittedCount + stats.runningCount ? 0 : idle + 1
        idle == 10 || stats.failedCount || workflow.complete
    }
    idle == 10
}

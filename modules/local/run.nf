// What a launch has of its own, from its beginning to its end. A Python process stands by it
// (linumpy/launch/keep.py), until this one closes its input or ends, however that happens: it keeps
// the output folder for this launch alone, writes its record, mends what a resumed launch takes up,
// and publishes what Nextflow lays links to (conf/publish.config).

include { answer_of; exchange; start_python } from './launch'
include { typed_params } from './schema'

// What the result is called.
def brain_name(given, subject) {
    given.mode == '2.5d' ? "${subject}_2d.ome.zarr" : "${subject}.ome.zarr"
}

// Claim the output folder, and have all done that comes before the first task. Returns what end_run
// takes. The session is written into the folder: by itself -resume takes up the last launch, be it
// one that was refused.
def begin_run(given, source, schema) {
    def keeper = start_python('keep')
    def work_dir = workflow.workDir.fileSystem.provider().scheme == 'file' ? workflow.workDir.toString() : null
    exchange(keeper, [
        output: given.output.toString(),
        brain: brain_name(given, source.subject),
        session: workflow.sessionId.toString(),
        resume: workflow.resume,
        overwrite: given.overwrite,
        publish_mode: given.publish_mode,
        work_dir: work_dir,
        // A resumed run has done part of it already.
        needs: workflow.resume || workflow.stubRun ? null : source.needs,
    ])
    def named = workflow.container instanceof Map ? workflow.container.values().toList() : [workflow.container]
    // Beside Nextflow's cache, where nobody else writes; conf/publish.config says the same.
    def cache = System.getenv('NXF_CACHE_DIR') ?: "${launchDir}/.nextflow"
    def folder = java.util.UUID.nameUUIDFromBytes("${launchDir} ${given.output}".toString().bytes)
    exchange(keeper, [
        action: 'begin',
        time: workflow.start.format(java.time.format.DateTimeFormatter.ofPattern('yyyy-MM-dd_HH-mm-ss')),
        project: projectDir.toString(),
        work_dir: work_dir,
        mend: workflow.resume && work_dir,
        links: "${cache}/publish/${folder}",
        mode: given.publish_mode,
        engine: workflow.containerEngine,
        images: named.findAll { image -> image }.unique(),
        record: [
            status: 'running',
            subject: source.subject,
            started: moment(workflow.start),
            command_line: workflow.commandLine,
            profile: workflow.profile,
            resumed: workflow.resume,
            session: workflow.sessionId.toString(),
            run_name: workflow.runName,
            versions: [nextflow: workflow.nextflow.version.toString(), java: System.getProperty('java.version')],
            revision: [commit: workflow.commitId, repository: workflow.repository, name: workflow.revision],
            params: typed_params(given, schema),
        ],
    ])
    keeper
}

// Publish what is left, end the record, and let go of the folder. The run fails here if that cannot
// be done.
def end_run(keeper, subject) {
    def counts = workflow.stats
    def ended = answer_of(keeper, [
        action: 'finish',
        // Somebody who wants to leave need not wait for the rest: -resume does it.
        give_up: workflow.errorReport in ['SIGINT', 'SIGTERM', 'SIGHUP'],
        report: "${params.output}/report.html",
        failure: workflow.errorReport,
        record: [
            status: workflow.success ? 'completed' : 'failed',
            ended: moment(workflow.complete),
            exit_status: workflow.exitStatus,
            error: workflow.errorMessage,
            counts: [succeeded: counts.succeededCount, cached: counts.cachedCount, failed: counts.failedCount],
        ],
    ])
    keeper.process.outputStream.close()
    keeper.process.waitFor()
    def problems = ended.error ? [ended.error] : ended.problems
    if (problems) {
        def advice = 'the results are in the work folder; once the output folder can take them, -resume publishes them'
        (problems + [advice]).each { line -> log.error(line) }
        if (workflow.success) {
            // The one way from here to the status of the launch.
            exit(1)
        }
    }
    else if (workflow.success) {
        def brain = "${params.output}/${brain_name(params, subject)}"
        log.info("Brain:  ${brain}\nReport: ${params.output}/report.html\n${ended.said ?: ''}".trim())
        if (ended.found) {
            log.warn(ended.found)
        }
    }
}

def moment(time) {
    time.truncatedTo(java.time.temporal.ChronoUnit.MILLIS).toString()
}

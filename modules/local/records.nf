// The record of this launch, <output>/pipeline_info/run_<time>.json. It is begun here, and ended in a
// few words; linum_write_run_record.py adds tasks and machines, and brings report and RO-Crate up to it.

include { run_command; write_there } from './launch'
include { schema_properties; typed } from './schema'
include { to_json } from './text'

// Write down what is known when a launch begins; it is all that is left of one that is killed.
// Returns it, with its place in the claimed folder.
def begin_record(claim, given, subject, schema) {
    // The RO-Crate's main entity.
    write_there(claim, 'pipeline_info/main.nf', projectDir.resolve('main.nf').text)
    def name = workflow.start.format(java.time.format.DateTimeFormatter.ofPattern('yyyy-MM-dd_HH-mm-ss'))
    def begun = [
        claim: claim,
        place: "pipeline_info/run_${name}.json",
        record: [
            status: 'running',
            subject: subject,
            started: moment(workflow.start),
            command_line: workflow.commandLine,
            profile: workflow.profile,
            resumed: workflow.resume,
            session: workflow.sessionId.toString(),
            run_name: workflow.runName,
            versions: [nextflow: workflow.nextflow.version.toString(), java: System.getProperty('java.version')],
            revision: revision(),
            container: container(),
            params: schema_properties(schema).collectEntries { key, property -> [key, typed(given[key], property)] },
        ],
    ]
    write_record(begun)
    begun
}

// Write down how a launch ended, and have the rest done. Its result stands whatever becomes of that.
// A run whose results are not all published, one problem a line, has failed.
def end_record(begun, problems) {
    def counts = workflow.stats
    def ended = [
        status: workflow.success && !problems ? 'completed' : 'failed',
        ended: moment(workflow.complete),
        exit_status: problems ? 1 : workflow.exitStatus,
        error: problems ? problems.join('\n') : workflow.errorMessage,
        counts: [succeeded: counts.succeededCount, cached: counts.cachedCount, failed: counts.failedCount],
    ]
    write_record(begun + [record: begun.record + ended])
    def script = ['linum_write_run_record.py', file(params.output.toString(), glob: false).toString()]
    def here = run_command(script)
    // Where only the container has linumpy.
    def said = here.status == 127 ? run_command(in_container(script)) : here
    if (said.status != 0) {
        log.warn("the run's record is not complete (${said.text}); complete it with: ${script[0]} '${script[1].replace("'", "'\\''")}'")
    }
}

// A command that runs in the pipeline's container, with the output and work folders at hand; where
// there is none, the command itself.
def in_container(words) {
    def engine = workflow.containerEngine
    if (!engine || !(workflow.container instanceof CharSequence)) {
        return words
    }
    def output = file(params.output.toString(), glob: false).toString()
    def places = [[output, 'rw'], [workflow.workDir.toString(), 'ro']]
    if (engine in ['docker', 'podman']) {
        def user = engine == 'podman' ? '0:0' : ['-u', '-g'].collect { flag -> run_command(['id', flag]).text }.join(':')
        def mounts = places.collectMany { place, access -> ['-v', "${place}:${place}:${access}"] }
        return [engine, 'run', '--rm', '--user', user, '--security-opt', 'label=disable'] + mounts + [workflow.container] + words
    }
    [engine, 'exec', '--bind', places.collect { place, access -> "${place}:${place}:${access}" }.join(','), workflow.container] + words
}

def moment(time) {
    time.truncatedTo(java.time.temporal.ChronoUnit.MILLIS).toString()
}

def write_record(begun) {
    write_there(begun.claim, begun.place, to_json(begun.record) + '\n')
}

// The sources' commit, and whether they were changed since; nothing where git does not know them.
def revision() {
    // Whoever runs these sources trusts them, be they another user's.
    def git = ['git', '-c', "safe.directory=${projectDir}", '--no-optional-locks', '-C', projectDir.toString()]
    def place = run_command(git + ['rev-parse', 'HEAD', '--show-prefix'])
    def lines = place.text.readLines()
    // Sources that lie somewhere in another repository have none of their own.
    if (place.status != 0 || lines.size() > 1 && lines[1]) {
        return [commit: workflow.commitId, modified: null, repository: workflow.repository, name: workflow.revision]
    }
    def changes = run_command(git + ['status', '--porcelain', '--untracked-files=no'])
    [
        commit: lines[0],
        modified: changes.status == 0 ? changes.text != '' : null,
        repository: workflow.repository,
        name: workflow.revision,
    ]
}

// Images by name, each with what its engine says of it: its id, then its digests in registries.
def container() {
    def named = workflow.container instanceof Map ? workflow.container.values().toList() : [workflow.container]
    def images = named.findAll { image -> image }.unique().collectEntries { image ->
        if (!(workflow.containerEngine in ['docker', 'podman'])) {
            return [image, null]
        }
        def format = '{{.Id}}{{range .RepoDigests}} {{.}}{{end}}'
        def said = run_command([workflow.containerEngine, 'image', 'inspect', '--format', format, image])
        [image, said.status == 0 ? said.text : null]
    }
    [engine: images ? workflow.containerEngine : null, images: images]
}

// The output folder: room for it, and what is said of it last.

include { brain_name } from './text'

// Refuse to start what the disk cannot hold. Raw tiles are written once as grids unless they go
// straight to the slices, and once more where grids are published as copies; single stages write a
// few grids more. A resumed run has done part of it already and is not asked.
def check_space(given, source) {
    if (workflow.resume || workflow.stubRun) {
        return
    }
    def grids = source.kind == 'raw' && !source.straight ? 1 : 0
    def published = given.keep_mosaic_grids && given.publish_mode == 'copy' ? grids : 0
    def worked = grids + (given.fused ? 0.5 : 3)
    def output = java.nio.file.Files.getFileStore(file(given.output.toString(), glob: false))
    if (workflow.workDir.fileSystem.provider().scheme != 'file') {
        // A bucket is never full.
        enough_space("--output ${given.output}", output, published * source.bytes)
        return
    }
    workflow.workDir.mkdirs()
    def work = java.nio.file.Files.getFileStore(workflow.workDir)
    def shared = output == work
    enough_space("--output ${given.output}", output, (shared ? published + worked : published) * source.bytes)
    enough_space("the work folder ${workflow.workDir} (-work-dir)", work, worked * source.bytes)
}

def enough_space(what, store, bytes) {
    if (store.usableSpace < bytes) {
        def wanted = (bytes / 1e9).round(1)
        def there = (store.usableSpace / 1e9).round(1)
        error("${what}: about ${wanted} GB will be written, ${there} GB are free")
    }
}

// The last word of a run, which fails here if results could not be published.
def tell_result(subject, problems) {
    if (problems) {
        def lines = problems + ['the results are in the work folder; once the output folder can take them, -resume publishes them']
        lines.each { line -> log.error(line) }
        nextflow.Global.session.abort(new IllegalStateException(lines.join('\n')))
    }
    else if (workflow.success) {
        log.info("Brain:  ${params.output}/${brain_name(params, subject)}\nReport: ${params.output}/report.html")
        tell_findings("${params.output}/report.html")
    }
}

// What the report found, last of all: by linum_nextflow.py, which names a file for it, else here.
def tell_findings(report) {
    def found = findings_of(file(report, glob: false))
    if (!found) {
        return
    }
    def lines = ["${found.summary}, see the report: ${report}"] + found.problems.collect { text -> "  ${text}" }
    def place = System.getenv('LINUMPY_FAILURE')
    if (place && new File(place).exists()) {
        java.nio.file.Files.writeString(java.nio.file.Path.of(place), lines.join('\n').toString())
    }
    else if (found.summary == 'no problems') {
        log.info(lines[0])
    }
    else {
        log.warn(lines.join('\n'))
    }
}

// The summary and the first problems, from the head of the report; null where it says nothing.
def findings_of(report) {
    def head = []
    try {
        head = report.withReader('UTF-8') { reader ->
            reader.lines().takeWhile { line -> !line.contains('<style>') }.toList()
        }
    }
    catch (IOException problem) {
        log.debug("no findings: ${problem}")
    }
    def told = head.collect { line -> line =~ /<meta name="linumpy-(findings|problem)" content="([^"]*)">/ }
        .findAll { match -> match }
        .collect { match -> [match[0][1], unescaped(match[0][2])] }
    def summary = told.find { kind, _text -> kind == 'findings' }
    summary ? [summary: summary[1], problems: told.findAll { kind, _text -> kind == 'problem' }.collect { _kind, text -> text }] : null
}

def unescaped(text) {
    text.replace('&lt;', '<').replace('&gt;', '>').replace('&#34;', '"').replace('&#39;', "'").replace('&amp;', '&')
}

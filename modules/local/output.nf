// The output folder: room for it, how it is laid out, and what its results are called.

include { shown } from './names'

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

// A file of a finished task with its place in the output folder. Task folders are two names
// below the work folder, and laid out like the output. Places go into scripts as they are.
def placed(path) {
    def inside = workflow.workDir.relativize(path)
    def place = inside.subpath(2, inside.nameCount).toString()
    if (!(place ==~ '[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*')) {
        error("${workflow.workDir}: a task left ${shown(place)}; expected letters, digits, dots, dashes and underscores")
    }
    [place, path]
}

// When a task fails, the channels of its process end, and operators hand on lists that are short or
// empty, moments before Nextflow stops all else. These functions give a list that is whole, or nothing.

// The values of two channels as a pair.
def both(first, second) {
    first.map { value -> [value] }.combine(second.map { value -> [value] }).first()
}

// The value of a channel, once another channel has given one.
def once(value, sign) {
    both(value, sign).map { given, _sign -> given }
}

// All that comes through a channel as one list, once there is as much as a second channel says.
def whole(items, count) {
    both(items.toList(), count).filter { rows, expected -> rows.size() == expected }.map { rows, _expected -> rows }
}

def by_id(rows) {
    rows.sort(false) { row -> row[0].toInteger() }
}

// The volumes of a list of [slice_id, volume], first slice first.
def in_order(slices) {
    slices.map { rows -> by_id(rows).collect { row -> row[1] } }
}

// A list of all slices as one input: [ids, grids, raw, digests], first slice first.
def all_slices(slices) {
    slices.map { rows ->
        def (ids, grids, raw, digests) = by_id(rows).transpose()
        [ids, grids.findAll { grid -> grid }, raw[0], digests]
    }
}

// The places of a list of [place, file], and the files in the same order.
def places(files) {
    files.map { rows -> rows.sort(false) { row -> row[0] }.collect { row -> row[0] } }
}

def items(files) {
    files.map { rows -> rows.sort(false) { row -> row[0] }.collect { row -> row[1] } }
}

// Shell lines that lay out files, staged under their numbers, like the output folder.
def lay_out(folder, places) {
    places.withIndex().collect { place, index ->
        def target = "${folder}/${place}"
        def parent = target.substring(0, target.lastIndexOf('/'))
        "mkdir -p ${parent} && ln -s \"\$PWD\"/staged/${index + 1}/item ${target}"
    }.join('\n    ')
}

// What the result is called.
def brain_name(given, subject) {
    given.mode == '2.5d' ? "${subject}_2d.ome.zarr" : "${subject}.ome.zarr"
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

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
        def wanted = String.format('%.1f', bytes / 1e9)
        def there = String.format('%.1f', store.usableSpace / 1e9)
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

// [slice_id, volume] of all slices as one list of volumes, first slice first.
def in_order(slices) {
    slices.toSortedList { a, b -> a[0].toInteger() <=> b[0].toInteger() }
        .map { rows -> rows.collect { row -> row[1] } }
}

// All slices as one input: [ids, grids, raw, digests], first slice first.
def all_slices(slices) {
    slices.toSortedList { a, b -> a[0].toInteger() <=> b[0].toInteger() }
        .map { rows ->
            def grids = rows.collect { row -> row[1] }.findAll { grid -> grid }
            [rows.collect { row -> row[0] }, grids, rows ? rows[0][2] : [], rows.collect { row -> row[3] }]
        }
}

// The places of [place, file] as one list, and the files in the same order.
def places(files) {
    files.toSortedList { a, b -> a[0] <=> b[0] }.map { rows -> rows.collect { row -> row[0] } }
}

def items(files) {
    files.toSortedList { a, b -> a[0] <=> b[0] }.map { rows -> rows.collect { row -> row[1] } }
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
        problems.each { problem -> log.error(problem) }
        log.error('the results are in the work folder; once the output folder can take them, -resume publishes them')
        nextflow.Global.session.abort(new IllegalStateException('results are not published'))
    }
    else if (workflow.success) {
        log.info("Brain:  ${params.output}/${brain_name(params, subject)}\nReport: ${params.output}/report.html")
    }
}

// The output folder: one launch at a time, and nothing finished is replaced unasked.

// Open the output folder for this launch and return its lock. The system lets go of the lock
// when this process ends, however it ends. The lock's file tells the session to resume: by itself
// -resume takes up the last launch, be it one that was refused.
def claim_output(given, subject) {
    def folder = file(given.output.toString())
    folder.mkdirs()
    if (!folder.isDirectory()) {
        error("--output ${folder}: cannot be made; expected a folder, or a place for one")
    }
    def lock_file = folder.resolve('.linumpy.lock')
    def opened = java.nio.channels.FileChannel.open(
        lock_file,
        java.nio.file.StandardOpenOption.CREATE,
        java.nio.file.StandardOpenOption.READ,
        java.nio.file.StandardOpenOption.WRITE,
    )
    def lock = opened.tryLock()
    if (lock == null) {
        error("--output ${folder}: another run is writing there; wait for it, or name another folder")
    }
    def brain = folder.resolve(brain_name(given, subject))
    if (brain.exists() && !workflow.resume && !given.overwrite) {
        error("${brain}: exists already; continue that run with -resume ${lock_file.text.trim()}, replace it with --overwrite, or name another --output")
    }
    opened.truncate(0)
    opened.write(java.nio.ByteBuffer.wrap("${workflow.sessionId}\n".getBytes('UTF-8')))
    lock
}

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
    def output = java.nio.file.Files.getFileStore(file(given.output.toString()))
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
// below the work folder, and laid out like the output.
def placed(path) {
    def inside = workflow.workDir.relativize(path)
    [inside.subpath(2, inside.nameCount).toString(), path]
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

def tell_result(subject) {
    if (workflow.success) {
        log.info("Brain:  ${params.output}/${brain_name(params, subject)}\nReport: ${params.output}/report.html")
    }
}

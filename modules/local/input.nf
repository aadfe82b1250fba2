// What lies in the input folder. Python tells (linumpy/launch/discover.py); what is not in a file
// system of this machine, Nextflow lists for it.

include { ask } from './launch'
include { typed_params } from './schema'

// The input as a map: kind (raw or grids), root, subject, digest of all, the tables that are given,
// whether raw tiles go straight to the slices, as nobody keeps or needs grids of them, what a run
// needs room for, and slices, each a list [slice_id, path, digest]. A slice id is text of two digits
// or more. Wrong parameters are an error; what was asked for instead, help or a plan, is printed.
def find_input(given, schema) {
    def asked = [
        params: typed_params(given, schema),
        schema: projectDir.resolve('nextflow_schema.json').toString(),
        work_dir: workflow.workDir.toString(),
        preview: workflow.preview,
        stub: workflow.stubRun,
        resume: workflow.resume,
        // Any of them but the pipeline's own may give tasks to other machines.
        configs: workflow.configFiles.findAll { path -> !path.startsWith(projectDir) }*.toString(),
        places: [
            'the launch folder': workflow.launchDir.toString(),
            'the pipeline': projectDir.toString(),
            'the work folder (-work-dir)': workflow.workDir.toString(),
            '--output': given.output.toString(),
        ],
    ]
    def answer = ask('find', asked)
    def far = answer.is_far ? opened('--input', given.input) : null
    def found = far ? ask('find', asked + listing(far, given)) : answer
    if (found.text) {
        println(found.text.trim())
    }
    if (given.help) {
        return null
    }
    def root = far ? far.resolve(found.root == '.' ? '' : found.root) : file(found.root, glob: false)
    def tables = ['shifts_xy', 'slice_config'].collectEntries { name ->
        [name, found[name] == null ? null : far && given[name] == null ? far.resolve(found[name]) : file(found[name], glob: false)]
    }
    found + tables + [
        root: root,
        slices: found.slices.collect { slice_id, name, digest -> [slice_id, name ? root.resolve(name) : root, digest] },
    ]
}

// Files of a folder elsewhere: name below it, bytes, time in ns; and its tables.
def listing(folder, given) {
    if (!folder.isDirectory()) {
        error("--input ${given.input}: no such folder; expected raw tiles (tile_x00_y00_z00) or mosaic grids")
    }
    def rows = files_below(folder).collect { path ->
        [folder.relativize(path).toString(), path.size(), 1000000 * path.lastModified()]
    }
    def tables = rows.collect { row -> row[0] }.findAll { name -> name ==~ /(mosaic_grids\/)?slice_config\.csv/ }
    [
        listing: rows,
        texts: tables.collectEntries { name -> [name, folder.resolve(name).text] },
        root_names: folder.toList()*.toString(),
    ] + (given.slice_config && is_address(given.slice_config) ? [slice_config_text: opened('--slice_config', given.slice_config).text] : [:])
}

def files_below(folder) {
    folder.list().toList().sort().collect { name -> folder.resolve(name) }
        .collectMany { path -> path.isDirectory() ? files_below(path) : [path] }
}

def is_address(text) {
    text.toString() ==~ /(?s)[A-Za-z][A-Za-z0-9+.-]+:.*/
}

def opened(option, text) {
    try {
        return file(text.toString(), glob: false)
    }
    catch (IllegalStateException problem) {
        error("${option} ${text}: this Nextflow cannot read it (${problem.message}); copy it here, or see docs/cloud.md")
    }
}

// A file or folder with a digest of what is in it.
def checked_path(option, text) {
    looked_at(option, text, false)
}

def with_digest(option, text) {
    looked_at(option, text, true)
}

def looked_at(option, text, wants_folder) {
    if (is_address(text)) {
        def path = opened(option, text)
        def files = path.isDirectory() ? files_below(path) : [path]
        return [path, files.collect { item -> "${item} ${item.size()} ${item.lastModified()}" }.sort().join('\n').sha256()]
    }
    def found = ask('path', [option: option, text: text.toString(), folder: wants_folder])
    [file(found.path, glob: false), found.digest]
}

// A folder of transforms made by hand, with a digest. Each must be for a slice of the input.
def manual_transforms(text, ids) {
    def found = ask('manual', [text: text.toString(), ids: ids*.toInteger()])
    [file(found.path, glob: false), found.digest]
}

// Whether slice_config.csv lets a slice into the brain; not said means yes.
def is_used(config, slice_id) {
    def row = config.splitCsv(header: true, strip: true)
        .find { cells -> cells.slice_id.replace('"', '').toDouble() == slice_id.toDouble() }
    !is_no(row?.use)
}

// Rows of shifts_xy.csv up to the one that places a slice: those after it move no slice before.
def rows_up_to(shifts, slice_id) {
    shifts.splitCsv(header: true, strip: true)
        .takeWhile { row -> !(row.fixed_id ==~ /[0-9.]+/) || row.fixed_id.toDouble() < slice_id.toDouble() }
}

def is_no(cell) {
    cell?.toLowerCase() in ['false', '0', '0.0', 'no', 'n', 'f']
}

// Gaps of one slice between two that are used: [slice_id, volume before, volume after].
def single_gaps(slices, config) {
    def used = slices.findAll { slice_id, _volume -> is_used(config, slice_id) }
        .sort { slice -> slice[0].toInteger() }
    def steps = used.withIndex().drop(1).groupBy { slice, index ->
        [slice[0].toInteger() - used[index - 1][0].toInteger(), 3].min()
    }
    (steps[3] ?: []).each { slice, index ->
        log.warn("no slice is used between z${used[index - 1][0]} and z${slice[0]}: a gap of more than one slice stays open")
    }
    (steps[2] ?: []).collect { slice, index ->
        // No format: some locales have digits of their own.
        [(slice[0].toInteger() - 1).toString().padLeft(2, '0'), used[index - 1][1], slice[1]]
    }
}

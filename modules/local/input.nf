// What lies in the input folder, told by content.

include { local_path; safe_place } from './names'

// The input as a map: kind (raw or grids), root, subject, digest of all, the tables that are given,
// whether raw tiles go straight to the slices, as nobody keeps or needs grids of them, and slices,
// each a list [slice_id, path, digest]. A slice id is text of two digits or more.
def find_input(given) {
    def root = local_path('--input', given.input)
    if (!root.isDirectory()) {
        error("--input ${given.input}: no such folder; expected raw tiles (tile_x00_y00_z00) or mosaic grids")
    }
    def grids = find_grids(root)
    def tiles = find_tiles(root, own_folders(given))
    if (grids && tiles) {
        error("--input ${root}: holds both raw tiles (${tiles[0]}) and mosaic grids (${grids[0]}); name one of the two folders")
    }
    if (!grids && !tiles) {
        error("--input ${root}: found neither folders tile_x00_y00_z00 nor mosaic_grid_3d_z00.ome.zarr in it")
    }
    def slices = grids ? grid_slices(grids) : raw_slices(root, tiles)
    def slice_config = given_table('slice_config', given, grids)
    if (slice_config) {
        check_config(slice_config, slices.collect { slice -> slice[0] })
    }
    [
        kind: grids ? 'grids' : 'raw',
        straight: !grids && given.fused && !given.keep_mosaic_grids,
        root: grids ? grids[0].parent : root,
        subject: given.subject_name ? given.subject_name.toString() : subject_of(root),
        shifts_xy: given_table('shifts_xy', given, grids),
        slice_config: slice_config,
        bytes: size_of(grids ?: tiles),
        digest: slices.collect { slice -> slice[2] }.join(' ').sha256(),
        slices: chosen(slices, given.slices),
    ]
}

// The path without links, where there can be any.
def unlinked(path) {
    path.fileSystem.provider().scheme == 'file' ? path.toRealPath() : path
}

// The table named by a parameter, else the one beside the grids, else null.
def given_table(name, given, grids) {
    if (given[name] != null) {
        return checked_file("--${name}", given[name])
    }
    def beside = grids ? grids[0].resolveSibling("${name}.csv") : null
    beside?.exists() ? safe_place("--input: ${name}.csv", beside) : null
}

def checked_file(option, text) {
    def path = local_path(option, text)
    if (!path.isFile()) {
        error("${option} ${text}: no such file")
    }
    path
}

// A file, or a folder that holds one volume, with a digest.
def checked_path(option, text) {
    def path = local_path(option, text)
    if (!path.exists()) {
        error("${option} ${text}: no such file")
    }
    path.isDirectory() ? with_digest(option, text) : [path, digest_of(path.parent, [path])]
}

// A folder of transforms made by hand, with a digest. Each must be for a slice of the input.
def manual_transforms(text, ids) {
    def folder = with_digest('--manual_transforms_dir', text)
    children(folder[0]).findAll { path -> path.resolve('transform.tfm').exists() }.each { path ->
        def match = path.name =~ /slice_z(\d+)/
        if (!match.matches() || !(match[0][1].toInteger() in ids*.toInteger())) {
            error("--manual_transforms_dir ${text}: ${path.name}/transform.tfm is for no slice of the input, whose ids are ${ids*.toInteger().join(', ')}")
        }
    }
    folder
}

// A folder, with a digest of what is in it.
def with_digest(option, text) {
    def folder = local_path(option, text)
    if (!folder.isDirectory()) {
        error("${option} ${text}: no such folder")
    }
    [folder, digest_of(folder, all_files(folder))]
}

// The folders that this run itself writes to, should they lie within the input.
def own_folders(given) {
    [workflow.workDir, local_path('--output', given.output)].findAll { path -> path.exists() }.collect { path -> unlinked(path) }
}

// Mosaic grids in the folder, or in its folder mosaic_grids.
def find_grids(root) {
    [root, root.resolve('mosaic_grids')]
        .findAll { folder -> folder.isDirectory() }
        .collect { folder -> children(folder).findAll { path -> path.isDirectory() && grid_id(path) != null } }
        .find { found -> found } ?: []
}

// Tile folders at any depth; volumes, hidden folders and this run's own folders are not entered.
def find_tiles(folder, skipped) {
    children(folder).findAll { path -> path.isDirectory() }.collectMany { path ->
        if (tile_id(path) != null) {
            return [path]
        }
        def closed = path.name.startsWith('.') || path.name.endsWith('.zarr') || unlinked(path) in skipped
        closed ? [] : find_tiles(path, skipped)
    }
}

def children(folder) {
    folder.list().toList().sort().collect { name -> folder.resolve(name) }
}

def tile_id(path) {
    def match = path.name =~ /^tile_x\d+_y\d+_z(\d{1,9})(?!\d)/
    match ? match[0][1].toInteger() : null
}

def grid_id(path) {
    def match = path.name =~ /^mosaic_grid[A-Za-z0-9_]*?_z(\d{1,9})(?:_[A-Za-z0-9_]+)?\.ome\.zarr\z/
    match ? match[0][1].toInteger() : null
}

def two_digits(number) {
    String.format('%02d', number)
}

def grid_slices(grids) {
    def by_id = new TreeMap(grids.groupBy { path -> grid_id(path) })
    by_id.collect { number, paths ->
        if (paths.size() > 1) {
            error("--input: ${paths*.name.join(' and ')} both hold slice z${two_digits(number)}; expected one grid a slice")
        }
        [two_digits(number), paths[0], digest_of(paths[0], all_files(paths[0]))]
    }
}

def raw_slices(root, tiles) {
    def by_id = new TreeMap(tiles.groupBy { path -> tile_id(path) })
    by_id.collect { number, folders ->
        // Metadata that counts lies in the folders above the tiles.
        def above = folders.collectMany { tile -> folders_between(root, tile.parent) }.unique()
        def side_files = above.collectMany { folder -> ['metadata.json', 'state.json'].collect { name -> folder.resolve(name) } }
            .findAll { path -> path.exists() }
        def files = folders.collectMany { tile -> children(tile) } + side_files
        [two_digits(number), root, digest_of(root, files)]
    }
}

def folders_between(root, folder) {
    folder == root ? [root] : folders_between(root, folder.parent) + [folder]
}

def all_files(folder) {
    children(folder).collectMany { path -> path.isDirectory() ? all_files(path) : [path] }
}

// Bytes of all files in the given folders.
def size_of(folders) {
    folders.collect { folder -> all_files(folder).collect { path -> path.size() }.sum() ?: 0 }.sum()
}

// Changes with the name, size or time of any file. Nextflow looks no deeper than a folder's own
// time, so this value, passed beside the folder, is what makes a changed slice run again.
def digest_of(root, files) {
    files.collect { path -> "${root.relativize(path)} ${path.size()} ${path.lastModified()}" }
        .sort().join('\n').sha256()
}

// The slices named in text such as 7,9-12; all where there is none. A range may have gaps.
def chosen(slices, text) {
    if (text == null) {
        return slices
    }
    def there = slices.collect { slice -> slice[0].toInteger() }
    def wanted = text.toString().split(',').collectMany { part ->
        def ends = part.split('-')*.toInteger()
        def found = there.findAll { number -> number >= ends[0] && number <= ends[-1] }
        if (!found) {
            error("--slices ${text}: the input has no slice ${part}; it has ${there.join(', ')}")
        }
        found
    }
    slices.findAll { slice -> slice[0].toInteger() in wanted }
}

// A part sub-… of the path, else the last folder whose name says more than what kind it is.
def subject_of(root) {
    def kinds = ['mosaic-grids', 'mosaics', 'mosaic_grids', 'input', 'data', 'raw']
    def names = unlinked(root).toList()*.toString()
    def name = names.find { part -> part ==~ /sub-\w+/ } ?: names.reverse().find { part -> !(part in kinds) } ?: 'brain'
    name.replaceAll('[^A-Za-z0-9._-]+', '_').replaceAll('^[^A-Za-z0-9]+', '') ?: 'brain'
}

// Refuse a table of slices that names one twice, or wants one that the input has not.
def check_config(table, ids) {
    def rows = table.splitCsv(header: true, strip: true)
    if (rows && !rows[0].containsKey('slice_id')) {
        error("${table}: no column slice_id; its columns are ${rows[0].keySet().join(', ')}")
    }
    def there = ids*.toInteger()
    rows.withIndex().inject([:]) { lines, item ->
        def (row, index) = item
        def text = row.slice_id.replace('"', '')
        if (!text.isNumber()) {
            error("${table}, line ${index + 2}: slice_id ${row.slice_id}: expected a number")
        }
        def number = text.toDouble().toInteger()
        if (lines.containsKey(number)) {
            error("${table}, line ${index + 2}: a second row for slice z${two_digits(number)}, after line ${lines[number]}")
        }
        if (!(number in there) && !is_no(row.use)) {
            error("${table}, line ${index + 2}: slice z${two_digits(number)} is not in the input, whose ids are ${there.join(', ')}")
        }
        lines + [(number): index + 2]
    }
}

// Whether slice_config.csv lets a slice into the brain; not said means yes.
def is_used(config, slice_id) {
    def row = config.splitCsv(header: true, strip: true)
        .find { cells -> cells.slice_id.replace('"', '').toDouble() == slice_id.toDouble() }
    !is_no(row?.use)
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
    (steps[2] ?: [])
        .collect { slice, index -> [two_digits(slice[0].toInteger() - 1), used[index - 1][1], slice[1]] }
}

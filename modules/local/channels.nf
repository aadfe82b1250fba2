// What goes through channels between processes.

include { idle_without_failure } from './executors'
include { shown } from './text'

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

// All that comes through a channel as one list, where it is as much as a second channel says. Where it
// is not though no task fails, what takes the list would wait for ever: the run fails. `what` names the items.
def whole(what, items, count) {
    def list = both(items.toList(), count)
    // Not in the filter: Nextflow only logs what is thrown by one that filters a single value.
    list.subscribe { rows, expected -> fail_if_short(what, rows.size(), expected) }
    list.filter { rows, expected -> rows.size() == expected }.map { rows, _expected -> rows }
}

def fail_if_short(what, found, expected) {
    if (found != expected && idle_without_failure()) {
        error("${what}: ${found} came, expected ${expected}, though no task failed; go on with -resume")
    }
}

def by_id(rows) {
    rows.sort(false) { row -> row[0].toInteger() }
}

// The volumes of a list of [slice_id, volume], first slice first.
def in_order(slices) {
    slices.map { rows -> by_id(rows).collect { row -> row[1] } }
}

// A list of slices as one input: [ids, grids, raw, digests], first slice first.
def as_input(rows) {
    def (ids, grids, raw, digests) = by_id(rows).transpose()
    [ids, grids.findAll { grid -> grid }, raw[0], digests]
}

// A list of all slices as one input.
def all_slices(slices) {
    slices.map { rows -> as_input(rows) }
}

// Slices as inputs of groups: those whose ids have the same whole multiple of a number, so that one
// slice more or less changes one group. `ids` are all that come; a group that is whole goes on.
def slice_groups(slices, ids, per_task) {
    slices
        .combine(ids.map { all -> [all.countBy { slice_id -> group_of(slice_id, per_task) }] })
        .map { slice_id, grid, raw, digest, sizes ->
            def group = group_of(slice_id, per_task)
            [groupKey(group, sizes[group]), [slice_id, grid, raw, digest]]
        }
        .groupTuple()
        .map { _group, rows -> as_input(rows) }
}

def group_of(slice_id, per_task) {
    slice_id.toInteger().intdiv(per_task)
}

// Files of a list of [place, file] as inputs: a folder of a task for several files in it, as Nextflow and
// the shell link an input in 5 ms and a slice has 14 files. What lies at the top of the output, what a user
// gave, and a file alone is an input by itself. `places` has the places of each, a list for a folder.
def places(files) {
    files.map { rows ->
        by_input(rows).values().collect { own -> own.size() > 1 ? own.collect { row -> row[0] } : own[0][0] }
    }
}

def items(files) {
    files.map { rows -> by_input(rows).keySet().toList() }
}

def by_input(rows) {
    rows.sort(false) { row -> row[0] }
        .groupBy { place, path -> place.contains('/') && path.startsWith(workflow.workDir) ? path.parent : path }
        .collectEntries { input, own -> [own.size() > 1 ? input : own[0][1], own] }
}

// Slices in groups of neighbouring ids: [ids of a group, the same and the two that follow it]. One
// slice more or less changes its group, and those before where it is among the two.
def groups_with_next(ids, per_task) {
    def all = ids.sort(false) { id -> id.toInteger() }
    all.groupBy { id -> group_of(id, per_task) }.values()
        .collect { own -> [own, all.drop(all.indexOf(own[0])).take(own.size() + 2)] }
}

// Each of these groups once its slices are there: [ids of the group, volumes, last id of them].
def in_groups(slices, ids, per_task) {
    slices.combine(ids.map { all -> [groups_with_next(all, per_task)] })
        .flatMap { slice_id, path, groups ->
            groups.findAll { _own, needed -> slice_id in needed }
                .collect { own, needed -> tuple(groupKey(own, needed.size()), [slice_id, path]) }
        }
        .groupTuple()
        .map { own, rows -> [own.target] + by_id(rows).transpose().reverse() }
        .map { own, volumes, needed -> [own, volumes, needed[-1]] }
}

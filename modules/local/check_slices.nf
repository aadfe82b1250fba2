// Fails the run where slices of groups failed, once all others are done.

include { shown } from './text'
include { slice_tag } from './script'

// The slices that failed, as the input of check_slices: [ids, message]. `records` are those of all groups.
def failed_slices(records) {
    records.flatten()
        .map { path -> new groovy.json.JsonSlurper().parseText(path.text) }
        .filter { record -> record.status == 'failed' }
        .toSortedList { a, b -> a.slice_id <=> b.slice_id }
        .filter { failed -> failed }
        .map { failed ->
            def ids = failed.collect { record -> record.slice_id.toString().padLeft(2, '0') }
            def others = ids.size() > 1 ? " (failed, too: z${ids.tail().join(', z')})" : ''
            [ids, "linum_reconstruct_slice.py: error: ${shown(failed[0].error)}${others}"]
        }
}

process check_slices {
    tag "${slice_tag(slice_ids)}"
    label 'light'

    input:
    val slice_ids
    stdin

    script:
    """
    cat >&2
    echo >&2
    exit 1
    """
}

// Results on their way to the output folder. Nextflow lays a link to each into a folder of links
// (conf/publish.config); the process that keeps the output folder publishes what they lead to while
// the run goes on (linumpy/launch/publish.py).

include { exchange } from './launch'

// Begin to publish into the claimed folder, and return what end_publishing takes.
def begin_publishing(claim, given) {
    exchange(claim, [action: 'publish', links: links_folder(given), mode: given.publish_mode])
    claim
}

// Beside Nextflow's cache, where nobody else writes; conf/publish.config says the same.
def links_folder(given) {
    def cache = System.getenv('NXF_CACHE_DIR') ?: "${launchDir}/.nextflow"
    "${cache}/publish/${java.util.UUID.nameUUIDFromBytes("${launchDir} ${given.output}".toString().bytes)}"
}

// Publish what is left, and return what is wrong with the places of all results: one line each.
// Somebody who wants to leave need not wait for it: -resume does the rest.
def end_publishing(claim) {
    exchange(claim, [action: 'finish', give_up: nextflow.Global.session.aborted]).problems
}

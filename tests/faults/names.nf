// Which names of results come through. tests/faults/test_shell.py asks.

include { placed } from '../../modules/local/channels'
include { to_json } from '../../modules/local/text'

// Whether a closure's parameter is refused, and with what words.
def refusal(action) {
    try {
        action.call()
        return null
    }
    catch (Exception refused) {
        return (refused.cause ?: refused).message
    }
}

workflow {
    def asked = file(params.asked).splitJson().collectEntries { entry -> [entry.key, entry.value] }
    def places = asked.names.collect { name -> [name, refusal { placed(workflow.workDir.resolve("ab/cdef/${name}")) }] }
    file(params.answers).text = to_json(places)
}

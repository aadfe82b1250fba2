// Which values of parameters, and which names of results, come through. tests/faults/test_shell.py asks.

include { placed } from '../../modules/local/channels'
include { param_problems } from '../../modules/local/params'
include { read_schema; schema_properties } from '../../modules/local/schema'
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
    def schema = read_schema(projectDir.resolve('../../nextflow_schema.json'))
    def values = schema_properties(schema).keySet().collectMany { name ->
        asked.texts.collect { text -> [name, text, param_problems([input: 'raw', output: 'out'] + [(name): text], schema)] }
    }
    def places = asked.names.collect { name -> [name, refusal { placed(workflow.workDir.resolve("ab/cdef/${name}")) }] }
    file(params.answers).text = to_json([values: values, places: places])
}

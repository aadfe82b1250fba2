// Which values of parameters, and which names, come through. tests/faults/test_shell.py asks.

include { param_problems; read_schema; schema_properties; to_json } from '../../modules/local/params'
include { local_path } from '../../modules/local/names'
include { grid_id; subject_of; tile_id } from '../../modules/local/input'
include { placed } from '../../modules/local/output'
include { refuse_other_machine } from '../../modules/local/claim'

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
    def paths = asked.names.collect { name -> [name, refusal { local_path('--truth', "${asked.folder}/${name}") }] }
    def places = asked.names.collect { name -> [name, refusal { placed(workflow.workDir.resolve("ab/cdef/${name}")) }] }
    def within = asked.names.collect { name ->
        def path = file(asked.folder).resolve(name)
        [name, tile_id(path), grid_id(path), subject_of(path)]
    }
    def beats = asked.beats.collect { folder -> refusal { refuse_other_machine(file(folder), false) } }
    file(params.answers).text = to_json([values: values, paths: paths, places: places, within: within, beats: beats])
}

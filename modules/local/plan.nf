// What a run will take, as linum_plan.py says it. Asked for by -preview, which runs no task.

include { schema_properties; typed } from './schema'
include { to_json } from './text'

def show_plan(given, schema) {
    def script = 'linum_plan.py'
    def there = System.getenv('PATH').tokenize(':').any { folder ->
        java.nio.file.Files.isExecutable(java.nio.file.Path.of(folder, script))
    }
    if (!there) {
        log.warn("no plan: ${script} is not on PATH; it comes with linumpy, which must be installed where Nextflow is launched")
        return
    }
    def values = schema_properties(schema).collectEntries { name, property -> [name, typed(given[name], property)] }
    def device = given.gpu_memory == null ? [] : ['--gpu_memory', given.gpu_memory.toString()]
    def command = [script, given.input.toString(), '--params', '-', '--work_dir', workflow.workDir.toString()] + device
    def process = command.execute()
    def said = new StringBuffer()
    def complained = new StringBuffer()
    process.consumeProcessOutput(said, complained)
    process.withWriter { writer -> writer.write(to_json(values)) }
    process.waitForProcessOutput()
    if (process.exitValue() != 0) {
        error(complained.toString().trim())
    }
    println("${complained}${said}".trim())
}

// What Nextflow asks Python at launch: linumpy/launch, which needs no more than some Python.

include { to_json } from './text'

// The answer to one request, a map; what it says is wrong ends the launch.
def ask(command, request) {
    def python = start_python(command)
    def answer = exchange(python, request)
    python.process.waitFor()
    answer
}

// A request to what start_python started, and its answer.
def exchange(python, request) {
    def line = answer_to(python, request)
    if (!line) {
        def said = python.process.errorStream.text.readLines()
        error(said ? "Python could not look at the launch: ${said[-1]}" : 'the process that keeps the output folder has ended; -resume goes on')
    }
    def answer = new groovy.json.JsonSlurper().parseText(line)
    (answer.warnings ?: []).each { warning -> log.warn(warning) }
    if (answer.error) {
        error(answer.error)
    }
    answer
}

// One line of JSON; null from a process that has ended.
def answer_to(python, request) {
    try {
        python.process.outputStream.write("${to_json(request)}\n".getBytes('UTF-8'))
        python.process.outputStream.flush()
    }
    catch (IOException problem) {
        log.debug("no answer: ${problem}")
    }
    python.answers.readLine()
}

// Start linumpy/launch, with the Python that linum_nextflow.py names or the one on PATH, which sees
// only this package and its own standard library.
def start_python(command) {
    def python = System.getenv('LINUMPY_PYTHON') ?: 'python3'
    // In a clone, and where the workflow was installed with the package.
    def script = ['../../linumpy/launch/__main__.py', '../../../launch/__main__.py']
        .collect { place -> moduleDir.resolve(place).normalize() }
        .find { path -> path.exists() }
    try {
        def builder = new ProcessBuilder([python, '-I', '-S', '-X', 'utf8', script, command]*.toString())
        // What is kept beside the run speaks for itself when it ends the run.
        def process = (command == 'keep' ? builder.redirectError(ProcessBuilder.Redirect.INHERIT) : builder).start()
        return [process: process, answers: process.inputStream.newReader('UTF-8')]
    }
    catch (IOException problem) {
        error("${python}: cannot be started (${problem.message}); expected Python 3.9 or later as python3 on PATH, or named by LINUMPY_PYTHON")
    }
}

// Write a file in the claimed folder: whole or not at all, on the disk, and never through a link.
def write_there(keeper, place, text) {
    exchange(keeper, [action: 'write', place: place, text: text])
}

// Run a command; its status, 127 where there is none, and what it printed.
def run_command(words) {
    try {
        def nothing = java.nio.file.Path.of('/dev/null').toFile()
        def process = new ProcessBuilder(words*.toString()).redirectErrorStream(true).redirectInput(nothing).start()
        def text = process.inputStream.text.trim()
        return [status: process.waitFor(), text: text]
    }
    catch (IOException problem) {
        return [status: 127, text: problem.message]
    }
}

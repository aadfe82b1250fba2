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
    def answer = answer_of(python, request)
    answer.error ? error(answer.error) : answer
}

// The same, with what is wrong as its error.
def answer_of(python, request) {
    try {
        python.process.outputStream.write("${to_json(request)}\n".getBytes('UTF-8'))
        python.process.outputStream.flush()
    }
    catch (IOException problem) {
        log.debug("no answer: ${problem}")
    }
    heard(python)
}

// What Python says next, once what it says before is shown. One that has ended says nothing.
def heard(python) {
    def line = python.answers.readLine()
    if (!line) {
        def said = python.process.errorStream.text.readLines()
        def ended = 'the process that keeps the output folder has ended; -resume goes on'
        return [error: said ? "Python could not look at the launch: ${said[-1]}" : ended]
    }
    def answer = new groovy.json.JsonSlurper().parseText(line)
    (answer.warnings ?: []).each { warning -> log.warn(warning) }
    answer.more ? heard(python) : answer
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

// Checks Nextflow sources with the parser of strict syntax, the one that newer versions use.
// Run by groovy.ui.GroovyMain with the files to check as arguments. Prints one line a problem,
// then how many files were read; exit status 1 when there was a problem.

import nextflow.config.control.ConfigParser
import nextflow.script.control.ParanoidWarning
import nextflow.script.control.ScriptParser
import org.codehaus.groovy.control.messages.ExceptionMessage
import org.codehaus.groovy.control.messages.SyntaxErrorMessage
import org.codehaus.groovy.control.messages.WarningMessage

def check(parser, List<String> paths) {
    paths.each { path -> parser.parse(new File(path).canonicalFile) }
    parser.analyze()
    parser.compiler().sources.collectMany { uri, source ->
        def where = new File(uri).path
        def errors = source.errorCollector.errors ?: []
        def warnings = (source.errorCollector.warnings ?: []).findAll { warning ->
            !(warning instanceof ParanoidWarning)
        }
        errors.collect { message ->
            message instanceof SyntaxErrorMessage
                ? "${where}:${message.cause.startLine}: ${message.cause.originalMessage}"
                : "${where}: ${message instanceof ExceptionMessage ? message.cause.message : message}"
        } + warnings.collect { message ->
            def context = message instanceof WarningMessage ? message.context : null
            "${where}:${context?.startLine ?: '?'}: warning: ${message.message}"
        }
    }
}

def (configs, scripts) = args.toList().split { path -> path.endsWith('.config') }
def problems = check(new ScriptParser(), scripts) + check(new ConfigParser(), configs)
problems.each { problem -> println problem }
println "${scripts.size()} scripts, ${configs.size()} configs, ${problems.size()} problems"
System.exit(problems ? 1 : 0)

// The output folder belongs to one launch at a time, and nothing finished is replaced unasked. A
// Python process (linumpy/launch/claim.py) keeps it, and writes our records there, until this one
// lets go of it or ends, however that happens. What it finds wrong ends the launch.

include { brain_name } from './text'
include { exchange; start_python } from './launch'

// Claim the output folder, and return what release_output takes. The lock's file tells the session
// to resume: by itself -resume takes up the last launch, be it one that was refused.
def claim_output(given, subject) {
    def keeper = start_python('keep')
    def here = workflow.workDir.fileSystem.provider().scheme == 'file'
    exchange(keeper, [
        output: given.output.toString(),
        brain: brain_name(given, subject),
        session: workflow.sessionId.toString(),
        resume: workflow.resume,
        overwrite: given.overwrite,
        publish_mode: given.publish_mode,
        work_dir: here ? workflow.workDir.toString() : null,
    ])
    keeper
}

def release_output(keeper) {
    keeper.process.outputStream.close()
    keeper.process.waitFor()
}

// What people look at once the brain is there.

include { run_json; stage_params } from '../modules/local/schema'
include { checked_path; with_digest } from '../modules/local/input'
include { items; once; placed; places } from '../modules/local/channels'

include { evaluate_run } from '../modules/evaluate'
include { generate_pipeline_report } from '../modules/generate_pipeline_report'

// The result against the truth, where it is known, and a page that shows it.
workflow describe {
    take:
    brain // without it there is nothing to describe
    files // [place in the output folder, file]
    times // [process, tag, seconds]
    schema

    main:
    results = once(files.toList(), brain)
    if (params.truth) {
        evaluate_run(
            places(results),
            items(results),
            with_digest('--truth', params.truth),
            stage_params('evaluate', params, schema),
        )
        rated = evaluate_run.out.accuracy.map { path -> placed(path) }
        results = once(files.mix(rated).toList(), rated)
        times = times.mix(evaluate_run.out.time)
    }
    // Of a follower that wrote to the output folder, or to a folder of its own.
    def said = params.verdicts ? checked_path('--verdicts', params.verdicts)[0] : file("${params.output}/verdicts.jsonl", glob: false)
    if (said.exists()) {
        results = results.map { rows -> rows + [['verdicts.jsonl', said]] }
    }
    run_info = times.toSortedList { a, b -> a.join(' ') <=> b.join(' ') }
        .map { rows -> run_json(rows, params, schema) }
    generate_pipeline_report(places(results), items(results), run_info)
}

// What people look at once the brain is there.

include { run_json; stage_params } from '../modules/local/params'
include { with_digest } from '../modules/local/input'
include { items; placed; places } from '../modules/local/output'

include { evaluate_run } from '../modules/evaluate'
include { generate_pipeline_report } from '../modules/generate_pipeline_report'

// The result against the truth, where it is known, and a page that shows it.
workflow describe {
    take:
    files // [place in the output folder, file]
    times // [process, tag, seconds]
    schema

    main:
    if (params.truth) {
        evaluate_run(
            places(files),
            items(files),
            with_digest('--truth', params.truth),
            stage_params('evaluate', params, schema),
        )
        files = files.mix(evaluate_run.out.accuracy.map { path -> placed(path) })
        times = times.mix(evaluate_run.out.time)
    }
    run_info = times.toSortedList { a, b -> a.join(' ') <=> b.join(' ') }
        .map { rows -> run_json(rows, params, schema) }
    generate_pipeline_report(places(files), items(files), run_info)
}

// What people look at once the brain is there.

include { run_json; stage_params } from '../modules/local/params'
include { with_digest } from '../modules/local/input'
include { placed } from '../modules/local/output'

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
        evaluated = files.toSortedList { a, b -> a[0] <=> b[0] }
        evaluate_run(
            evaluated.map { rows -> rows.collect { row -> row[0] } },
            evaluated.map { rows -> rows.collect { row -> row[1] } },
            with_digest('--truth', params.truth),
            stage_params('evaluate', params, schema),
        )
        files = files.mix(evaluate_run.out.accuracy.map { path -> placed(path) })
        times = times.mix(evaluate_run.out.time)
    }
    shown = files.toSortedList { a, b -> a[0] <=> b[0] }
    run_info = times.toSortedList { a, b -> a.join(' ') <=> b.join(' ') }
        .map { rows -> run_json(rows, params, schema) }
    generate_pipeline_report(
        shown.map { rows -> rows.collect { row -> row[0] } },
        shown.map { rows -> rows.collect { row -> row[1] } },
        run_info,
    )
}

#!/usr/bin/env nextflow

// Raw tiles of a serial-section OCT in, one brain out.

include { read_schema; stage_params } from './modules/local/schema'
include { find_input; is_used; manual_transforms } from './modules/local/input'
include { all_slices; in_order; once; placed; slice_groups; whole } from './modules/local/channels'
include { check_slices; failed_slices } from './modules/local/check_slices'
include { begin_run; end_run } from './modules/local/run'

include { create_mosaic_grid_3d } from './modules/create_mosaic_grid_3d'
include { estimate_xy_shift_from_metadata } from './modules/estimate_xy_shift_from_metadata'
include { generate_slice_config } from './modules/generate_slice_config'
include { detect_rehoming } from './modules/detect_rehoming'
include { learn_models } from './modules/learn_models'
include { reconstruct_slice } from './modules/reconstruct_slice'

include { reconstruct_chained } from './workflows/reconstruct_chained'
include { reconstruct_2_5d } from './workflows/reconstruct_2_5d'
include { assemble } from './workflows/assemble'
include { finish } from './workflows/finish'
include { diagnose } from './workflows/diagnose'
include { describe } from './workflows/describe'

workflow {
    main:
    def schema = read_schema(projectDir.resolve('nextflow_schema.json'))
    def source = find_input(params, schema)
    if (params.help) {
        return
    }
    def manual = params.manual_transforms_dir
        ? manual_transforms(params.manual_transforms_dir, source.slices.collect { slice -> slice[0] })
        : null
    // A preview writes nothing, so it needs no folder to itself.
    def run = workflow.preview ? null : begin_run(params, source, schema)

    prepare(source, schema)
    if (params.mode == '2.5d') {
        made = reconstruct_2_5d(
            source.subject, prepare.out.slices, prepare.out.count, prepare.out.shifts, prepare.out.config, schema
        )
    }
    else {
        made = reconstruct_3d(
            source,
            prepare.out.given,
            prepare.out.slices,
            prepare.out.ids,
            prepare.out.shifts,
            prepare.out.config,
            manual,
            schema,
        )
    }
    describe(made.brain, prepare.out.files.mix(made.files), prepare.out.times.mix(made.times), schema)

    workflow.onComplete {
        if (run) {
            end_run(run, source.subject)
        }
    }
}

// Slices to work on, and tables. Mosaic grids are made from raw tiles, or taken as they lie in the
// input; where nobody wants them, raw tiles go straight to the slices.
workflow prepare {
    take:
    source // from find_input
    schema

    main:
    def folder = [source.root, source.digest]
    times = channel.empty()
    found = channel.empty()
    if (source.shifts_xy) {
        shifts = channel.value(source.shifts_xy)
    }
    else {
        estimate_xy_shift_from_metadata(folder, source.unplaced)
        shifts = estimate_xy_shift_from_metadata.out.shifts
        times = times.mix(estimate_xy_shift_from_metadata.out.time)
    }
    if (source.slice_config && !params.slices && !source.bad) {
        config = channel.value(source.slice_config)
    }
    else {
        generate_slice_config(folder, source.slice_config ?: [], source.bad)
        config = generate_slice_config.out.config
        times = times.mix(generate_slice_config.out.time)
    }
    // Re-homing says nothing on which slices are used: no slice waits for it.
    chosen = config.map { table ->
        source.slices.findAll { slice_id, _path, _digest -> is_used(table, slice_id) }
            ?: error('slice_config.csv leaves out every slice of the input')
    }
    if (params.detect_rehoming) {
        detect_rehoming(shifts, config, stage_params('detect_rehoming', params, schema))
        found = shifts.map { table -> ['shifts_xy.csv', table] }
            .mix(detect_rehoming.out.diagnostics.flatten().map { path -> placed(path) })
        shifts = detect_rehoming.out.shifts
        config = detect_rehoming.out.config
        times = times.mix(detect_rehoming.out.time)
    }
    used = chosen.flatMap { rows -> rows }
    given = used.map { slice_id, path, digest -> [slice_id] + (source.kind == 'raw' ? [[], path] : [path, []]) + [digest] }
    if (source.straight) {
        grids = channel.empty()
        slices = given
    }
    else {
        grids = used
        if (source.kind == 'raw') {
            create_mosaic_grid_3d(used)
            grids = create_mosaic_grid_3d.out.grid
            times = times.mix(create_mosaic_grid_3d.out.time)
        }
        slices = grids.map { slice_id, grid, digest -> [slice_id, grid, [], digest] }
    }

    emit:
    given // [slice_id, grid, raw, digest] as in the input; the grid or the raw folder is []
    slices // the same, with the grids that are made
    ids = chosen.map { rows -> rows.collect { row -> row[0] } }
    count = chosen.map { rows -> rows.size() }
    shifts
    config
    times
    files = grids.map { _slice_id, grid, _digest -> ["mosaic_grids/${grid.name}", grid] }
        .mix(found, shifts.map { table -> [params.detect_rehoming ? 'shifts_xy_clean.csv' : 'shifts_xy.csv', table] })
}

// Volumes of all slices, stacked to a brain.
workflow reconstruct_3d {
    take:
    source // from find_input
    given // slices as in the input
    slices
    ids // of slices
    shifts
    config
    manual // [folder of transforms, digest], or null
    schema

    main:
    count = ids.map { all -> all.size() }
    def subject = source.subject
    // From the input itself: models need few slices, and wait for no grid.
    learn(given, count, schema)
    if (params.fused) {
        reconstructed = reconstruct_fused(slice_groups(slices, ids, source.slices_per_task), learn.out.models, schema)
    }
    else {
        reconstructed = reconstruct_chained(slices, learn.out.models, schema)
    }
    assemble(subject, reconstructed.slices, ids, source.slices_per_task, shifts, config, manual, schema)
    finish(subject, assemble.out.brain, assemble.out.stack_model, assemble.out.preview, schema)
    diagnose(
        subject,
        slices.filter { _slice_id, grid, _raw, _digest -> grid }
            .map { slice_id, grid, _raw, _digest -> [slice_id, grid] },
        in_order(whole('slice volumes', reconstructed.slices, count)),
        shifts,
        assemble.out.config,
        assemble.out.registration,
        reconstructed.files.filter { place, _path -> place.endsWith('/register_tiles.json') },
        count,
        schema,
    )

    emit:
    brain = finish.out.brain
    files = learn.out.files
        .mix(reconstructed.files, assemble.out.files, finish.out.files, diagnose.out.files)
    times = learn.out.times
        .mix(reconstructed.times, assemble.out.times, finish.out.times, diagnose.out.times)
}

// What belongs to the microscope and not to a slice, learned once.
workflow learn {
    take:
    slices
    count
    schema

    main:
    learn_models(all_slices(whole('slices', slices, count)), stage_params('learn_models', params, schema))

    emit:
    // None where both corrections are off.
    models = once(learn_models.out.models.collect().ifEmpty([]), learn_models.out.time)
    files = learn_models.out.models.flatten().map { path -> placed(path) }
    times = learn_models.out.time
}

// A task a group of slices.
workflow reconstruct_fused {
    take:
    groups // [ids, grids, raw, digests]
    models
    schema

    main:
    reconstruct_slice(groups, models, stage_params('reconstruct_slice', params, schema))
    failed = failed_slices(reconstruct_slice.out.records)
    check_slices(failed.map { ids, _message -> ids }, failed.map { _ids, message -> message })
    made = reconstruct_slice.out.slices.flatten()

    emit:
    slices = made.map { path -> [(path.name =~ /z(\d+)/)[0][1], path] }
    files = made
        .mix(reconstruct_slice.out.models, reconstruct_slice.out.aip, reconstruct_slice.out.preview)
        .flatten()
        .map { path -> placed(path) }
    times = reconstruct_slice.out.time
}

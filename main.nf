#!/usr/bin/env nextflow

// Raw tiles of a serial-section OCT in, one brain out.

include { help_text; param_problems; read_schema; run_json; stage_params } from './modules/local/params'
include { find_input; is_used; with_digest } from './modules/local/input'
include { check_space; claim_output; in_order; placed; tell_result } from './modules/local/output'

include { create_mosaic_grid_3d } from './modules/create_mosaic_grid_3d'
include { estimate_xy_shift_from_metadata } from './modules/estimate_xy_shift_from_metadata'
include { generate_slice_config } from './modules/generate_slice_config'
include { learn_models } from './modules/learn_models'
include { reconstruct_slice } from './modules/reconstruct_slice'
include { resample_mosaic_grid } from './modules/resample_mosaic_grid'
include { detect_focal_curvature } from './modules/detect_focal_curvature'
include { fix_illumination_3d } from './modules/fix_illumination_3d'
include { aip_png } from './modules/aip_png'
include { register_tiles } from './modules/register_tiles'
include { stitch_3d_refined } from './modules/stitch_3d_refined'
include { crop_3d_mosaic_below_interface } from './modules/crop_3d_mosaic_below_interface'
include { normalize_intensities_per_slice } from './modules/normalize_intensities_per_slice'
include { register_slices } from './modules/register_slices'
include { align_mosaics_3d_from_shifts } from './modules/align_mosaics_3d_from_shifts'
include { stack_slices_motor } from './modules/stack_slices_motor'
include { convert_omezarr_to_nifti } from './modules/convert_omezarr_to_nifti'
include { evaluate_run } from './modules/evaluate'
include { generate_pipeline_report } from './modules/generate_pipeline_report'

workflow {
    main:
    def schema = read_schema(projectDir.resolve('nextflow_schema.json'))
    if (params.help) {
        println(help_text(schema, System.getenv('COLUMNS')))
        return
    }
    def problems = param_problems(params, schema)
    if (problems) {
        error(problems.join('\n'))
    }
    def source = find_input(params)
    def lock = claim_output(params, source.subject)
    check_space(params, source)

    prepare(source)
    learn(prepare.out.slices, schema)
    if (params.fused) {
        reconstructed = reconstruct_fused(prepare.out.slices, learn.out.models, schema)
    }
    else {
        reconstructed = reconstruct_chained(prepare.out.slices, learn.out.models, schema)
    }
    assemble(source.subject, reconstructed.slices, prepare.out.shifts, prepare.out.config, schema)
    describe(
        prepare.out.files.mix(learn.out.files, reconstructed.files, assemble.out.files),
        prepare.out.times.mix(learn.out.times, reconstructed.times, assemble.out.times),
        schema,
    )

    workflow.onComplete {
        lock.release()
        tell_result(source.subject)
    }
}

// Slices to work on, and tables. Mosaic grids are made from raw tiles, or taken as they lie in the
// input; where nobody wants them, raw tiles go straight to the slices.
workflow prepare {
    take:
    source // from find_input

    main:
    def folder = [source.root, source.digest]
    times = channel.empty()
    if (source.shifts_xy) {
        shifts = channel.value(source.shifts_xy)
    }
    else {
        estimate_xy_shift_from_metadata(folder)
        shifts = estimate_xy_shift_from_metadata.out.shifts
        times = times.mix(estimate_xy_shift_from_metadata.out.time)
    }
    if (source.slice_config) {
        config = channel.value(source.slice_config)
    }
    else {
        generate_slice_config(folder)
        config = generate_slice_config.out.config
        times = times.mix(generate_slice_config.out.time)
    }
    used = channel.fromList(source.slices)
        .combine(config)
        .filter { slice_id, _path, _digest, table -> is_used(table, slice_id) }
        .map { slice_id, path, digest, _table -> [slice_id, path, digest] }
        .ifEmpty { error('slice_config.csv leaves out every slice of the input') }
    if (source.straight) {
        grids = channel.empty()
        slices = used.map { slice_id, raw, digest -> [slice_id, [], raw, digest] }
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
    slices // [slice_id, grid, raw, digest]; the grid or the raw folder is []
    shifts
    config
    times
    files = grids.map { _slice_id, grid, _digest -> ["mosaic_grids/${grid.name}", grid] }
        .mix(shifts.map { table -> ['shifts_xy.csv', table] }, config.map { table -> ['slice_config.csv', table] })
}

// What belongs to the microscope and not to a slice, learned once.
workflow learn {
    take:
    slices
    schema

    main:
    ordered = slices.toSortedList { a, b -> a[0].toInteger() <=> b[0].toInteger() }
        .map { rows ->
            def grids = rows.collect { row -> row[1] }.findAll { grid -> grid }
            [rows.collect { row -> row[0] }, grids, rows ? rows[0][2] : [], rows.collect { row -> row[3] }]
        }
    learn_models(ordered, stage_params('learn_models', params, schema))

    emit:
    models = learn_models.out.models.collect().ifEmpty([]) // none where both corrections are off
    files = learn_models.out.models.flatten().map { path -> placed(path) }
    times = learn_models.out.time
}

// A task a slice.
workflow reconstruct_fused {
    take:
    slices
    models
    schema

    main:
    reconstruct_slice(slices, models, stage_params('reconstruct_slice', params, schema))

    emit:
    slices = reconstruct_slice.out.slice
    files = reconstruct_slice.out.slice.map { _slice_id, path -> path }
        .mix(reconstruct_slice.out.models, reconstruct_slice.out.aip, reconstruct_slice.out.preview)
        .flatten()
        .map { path -> placed(path) }
    times = reconstruct_slice.out.time
}

// A task a stage and slice, with the same result to the bit.
workflow reconstruct_chained {
    take:
    slices
    models
    schema

    main:
    grids = slices.map { slice_id, grid, _raw, digest -> [slice_id, grid, digest] }
    resample_mosaic_grid(grids, stage_params('resample_mosaic_grid', params, schema))
    detect_focal_curvature(
        resample_mosaic_grid.out.grid, models, stage_params('detect_focal_curvature', params, schema)
    )
    fix_illumination_3d(
        detect_focal_curvature.out.grid, models, stage_params('fix_illumination_3d', params, schema)
    )
    aip_png(fix_illumination_3d.out.grid)
    register_tiles(fix_illumination_3d.out.grid)
    stitch_3d_refined(
        fix_illumination_3d.out.grid.join(register_tiles.out.positions),
        stage_params('stitch_3d_refined', params, schema),
    )
    crop_3d_mosaic_below_interface(
        stitch_3d_refined.out.slice, stage_params('crop_3d_mosaic_below_interface', params, schema)
    )
    normalize_intensities_per_slice(
        crop_3d_mosaic_below_interface.out.slice,
        stage_params('normalize_intensities_per_slice', params, schema),
    )

    emit:
    slices = normalize_intensities_per_slice.out.slice
    files = normalize_intensities_per_slice.out.slice.map { _slice_id, path -> path }
        .mix(
            aip_png.out.aip,
            register_tiles.out.positions.map { _slice_id, path -> path },
            crop_3d_mosaic_below_interface.out.models,
            normalize_intensities_per_slice.out.models,
        )
        .map { path -> placed(path) }
    times = resample_mosaic_grid.out.time.mix(
        detect_focal_curvature.out.time,
        fix_illumination_3d.out.time,
        aip_png.out.time,
        register_tiles.out.time,
        stitch_3d_refined.out.time,
        crop_3d_mosaic_below_interface.out.time,
        normalize_intensities_per_slice.out.time,
    )
}

// Slices to one brain.
workflow assemble {
    take:
    subject
    slices
    shifts
    config
    schema

    main:
    volumes = in_order(slices)
    register_slices(volumes, shifts, config, stage_params('register_slices', params, schema))
    times = register_slices.out.time
    if (!params.fused) {
        align_mosaics_3d_from_shifts(slices, volumes, register_slices.out.registration)
        volumes = in_order(align_mosaics_3d_from_shifts.out.slice)
        times = times.mix(align_mosaics_3d_from_shifts.out.time)
    }
    stack_slices_motor(
        subject,
        volumes,
        shifts,
        config,
        register_slices.out.registration,
        !params.fused,
        stage_params('stack_slices_motor', params, schema),
    )
    brain = stack_slices_motor.out.brain
    if (params.nifti_resolution) {
        convert_omezarr_to_nifti(subject, brain)
        times = times.mix(convert_omezarr_to_nifti.out.time)
    }

    emit:
    files = register_slices.out.registration
        .mix(brain, stack_slices_motor.out.models, stack_slices_motor.out.matches, stack_slices_motor.out.preview)
        .map { path -> placed(path) }
    times = times.mix(stack_slices_motor.out.time)
}

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

// From slices to one brain.

include { stage_params } from '../modules/local/schema'
include { is_used; rows_up_to; single_gaps } from '../modules/local/input'
include { both; groups_with_next; in_groups; in_order; once; placed; whole } from '../modules/local/channels'

include { measure_pairs } from '../modules/measure_pairs'
include { assess_slice_quality } from '../modules/assess_slice_quality'
include { register_slices } from '../modules/register_slices'
include { refine_manual_transforms } from '../modules/refine_manual_transforms'
include { export_manual_align } from '../modules/export_manual_align'
include { auto_exclude_slices } from '../modules/auto_exclude_slices'
include { interpolate_missing_slice } from '../modules/interpolate_missing_slice'
include { finalise_interpolation } from '../modules/finalise_interpolation'
include { align_mosaics_3d_from_shifts } from '../modules/align_mosaics_3d_from_shifts'
include { stack_slices_motor } from '../modules/stack_slices_motor'

// Each step that decides on slices takes the table of decisions and gives a new one.
workflow assemble {
    take:
    subject
    slices
    ids // of slices
    slices_per_task
    shifts
    config
    manual // [folder of transforms, digest], or null
    schema

    main:
    all_slices = whole('slice volumes', slices, ids.map { all -> all.size() })
    volumes = in_order(all_slices)
    files = channel.empty()
    times = channel.empty()
    manifests = channel.value([])

    // A job of a scheduler takes eight slices. On this machine all its cores or GPUs measure the last pairs.
    def per_task = !params.gpu_count ? 8 : params.use_gpu ? 4 : Math.min(slices_per_task, 8)
    measured = in_groups(slices, ids, per_task).combine(shifts).multiMap { own, some, last, table ->
        slices: [own, some]
        given: stage_params('measure_pairs', params, schema, [shifts_rows: rows_up_to(table, last)])
    }
    measure_pairs(measured.slices, measured.given)
    pairs = whole('groups of pairs', measure_pairs.out.pairs, ids.map { all -> groups_with_next(all, per_task).size() })
        .map { groups -> groups.flatten().sort { path -> path.name } }
    times = times.mix(measure_pairs.out.time)

    if (params.assess_quality_enabled) {
        assess_slice_quality(volumes, shifts, config, pairs, stage_params('assess_slice_quality', params, schema))
        config = assess_slice_quality.out.config
        files = files.mix(assess_slice_quality.out.models)
        times = times.mix(assess_slice_quality.out.time)
    }

    register_slices(volumes, shifts, config, pairs, stage_params('register_slices', params, schema))
    registration = register_slices.out.registration
    metrics = register_slices.out.metrics
    times = times.mix(register_slices.out.time)

    if (manual) {
        refine_manual_transforms(
            volumes,
            shifts,
            config,
            registration,
            manual,
            stage_params('refine_manual_transforms', params, schema),
        )
        registration = refine_manual_transforms.out.registration
        metrics = refine_manual_transforms.out.metrics
        times = times.mix(refine_manual_transforms.out.time)
    }
    if (params.export_manual_align) {
        export_manual_align(
            volumes, shifts, config, registration, stage_params('export_manual_align', params, schema)
        )
        files = files.mix(export_manual_align.out.pictures)
        times = times.mix(export_manual_align.out.time)
    }

    if (params.auto_exclude_enabled) {
        auto_exclude_slices(registration, config, stage_params('auto_exclude_slices', params, schema))
        config = auto_exclude_slices.out.config
        files = files.mix(auto_exclude_slices.out.models)
        times = times.mix(auto_exclude_slices.out.time)
    }

    if (params.interpolate_missing_slices) {
        gaps = both(all_slices, config).map { rows, table -> single_gaps(rows, table) }
        interpolate_missing_slice(
            gaps.flatMap { rows -> rows },
            shifts,
            registration,
            stage_params('interpolate_missing_slice', params, schema),
        )
        filled = interpolate_missing_slice.out.slice
        // A gap always leaves a manifest, but not always a slice.
        manifests = whole('manifests of gaps', interpolate_missing_slice.out.manifest, gaps.map { rows -> rows.size() })
        all_slices = both(all_slices, once(filled.toList(), manifests)).map { rows, more -> rows + more }
        volumes = in_order(all_slices)
        files = files.mix(
            filled.map { _slice_id, path -> path },
            interpolate_missing_slice.out.diagnostics,
            interpolate_missing_slice.out.preview,
        )
        times = times.mix(interpolate_missing_slice.out.time)
    }
    finalise_interpolation(config, manifests)
    times = times.mix(finalise_interpolation.out.time)

    if (!params.fused) {
        // What is left out of the brain has no place in it.
        stacked = both(all_slices, finalise_interpolation.out.config).map { rows, table ->
            rows.findAll { slice_id, path -> path.name.contains('_interpolated') || is_used(table, slice_id) }
        }
        align_mosaics_3d_from_shifts(stacked.flatMap { rows -> rows }, in_order(stacked), registration, pairs)
        volumes = in_order(whole('aligned slices', align_mosaics_3d_from_shifts.out.slice, stacked.map { rows -> rows.size() }))
        times = times.mix(align_mosaics_3d_from_shifts.out.time)
    }
    stack_slices_motor(
        subject,
        volumes,
        shifts,
        finalise_interpolation.out.config,
        registration,
        pairs,
        !params.fused,
        stage_params('stack_slices_motor', params, schema),
    )

    emit:
    brain = stack_slices_motor.out.brain
    stack_model = stack_slices_motor.out.model
    preview = stack_slices_motor.out.preview
    registration
    config = finalise_interpolation.out.config
    files = files
        .mix(
            registration,
            metrics,
            finalise_interpolation.out.config,
            stack_slices_motor.out.model,
            stack_slices_motor.out.metrics,
            stack_slices_motor.out.matches,
        )
        .flatten()
        .map { path -> placed(path) }
    times = times.mix(stack_slices_motor.out.time)
}

// Looks at a run from other sides. Nothing here changes the brain.

include { stage_params } from '../modules/local/schema'
include { items; placed; places; whole } from '../modules/local/channels'

include { analyze_shifts } from '../modules/analyze_shifts'
include { analyze_registration_transforms } from '../modules/analyze_registration_transforms'
include { analyze_acquisition_rotation } from '../modules/analyze_acquisition_rotation'
include { compare_stitching } from '../modules/compare_stitching'
include { stitch_motor_only } from '../modules/stitch_motor_only'
include { stack_motor_only } from '../modules/stack_motor_only'

workflow diagnose {
    take:
    subject
    grids // [slice_id, grid]; none where raw tiles go straight to the slices
    volumes // all slices
    shifts
    config
    registration
    tile_models // [place, file] of what slices taught, one a slice
    count // of slices
    schema

    main:
    files = channel.empty()
    times = channel.empty()
    if (params.analyze_shifts) {
        analyze_shifts(shifts, stage_params('analyze_shifts', params, schema))
        files = files.mix(analyze_shifts.out.diagnostics)
        times = times.mix(analyze_shifts.out.time)
    }
    if (params.diagnostic_mode) {
        analyze_registration_transforms(
            registration, stage_params('analyze_registration_transforms', params, schema)
        )
        tiles = whole('registrations of tiles', tile_models, count)
        analyze_acquisition_rotation(places(tiles), items(tiles))
        compare_stitching(places(tiles), items(tiles))
        stitch_motor_only(grids, stage_params('stitch_motor_only', params, schema))
        stack_motor_only(
            subject, volumes, shifts, config, stage_params('stack_motor_only', params, schema)
        )
        files = files.mix(
            analyze_registration_transforms.out.diagnostics,
            analyze_acquisition_rotation.out.diagnostics,
            compare_stitching.out.diagnostics,
            stack_motor_only.out.preview,
        )
        times = times.mix(
            analyze_registration_transforms.out.time,
            analyze_acquisition_rotation.out.time,
            compare_stitching.out.time,
            stitch_motor_only.out.time,
            stack_motor_only.out.time,
        )
    }

    emit:
    files = files.flatten().map { path -> placed(path) }
    times
}

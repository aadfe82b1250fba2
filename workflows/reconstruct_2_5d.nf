// Slices to one stack of pictures: a projection along depth for each, stitched and aligned.

include { stage_params } from '../modules/local/schema'
include { all_slices; in_order; placed; whole } from '../modules/local/channels'

include { estimate_illumination } from '../modules/estimate_illumination'
include { reconstruct_slice_2d } from '../modules/reconstruct_slice_2d'
include { stack_slices_2d } from '../modules/stack_slices_2d'

workflow reconstruct_2_5d {
    take:
    subject
    slices // [slice_id, grid, raw, digest]; the grid or the raw folder is []
    count // of slices
    shifts
    config
    schema

    main:
    times = channel.empty()
    models = channel.value([])
    learned = channel.empty()
    if (params.fix_illum_enabled) {
        estimate_illumination(all_slices(whole('slices', slices, count)), stage_params('estimate_illumination', params, schema))
        models = estimate_illumination.out.models.collect()
        learned = estimate_illumination.out.models
        times = estimate_illumination.out.time
    }
    reconstruct_slice_2d(slices, models, stage_params('reconstruct_slice_2d', params, schema))
    stack_slices_2d(
        subject,
        in_order(whole('slice images', reconstruct_slice_2d.out.slice, count)),
        shifts,
        config,
        stage_params('stack_slices_2d', params, schema),
    )

    emit:
    brain = stack_slices_2d.out.brain
    files = learned
        .mix(
            reconstruct_slice_2d.out.slice.map { _slice_id, path -> path },
            reconstruct_slice_2d.out.models,
            reconstruct_slice_2d.out.aip,
            reconstruct_slice_2d.out.preview,
            stack_slices_2d.out.brain,
            stack_slices_2d.out.models,
            stack_slices_2d.out.preview,
        )
        .flatten()
        .map { path -> placed(path) }
        .mix(config.map { table -> ['slice_config.csv', table] })
    times = times.mix(reconstruct_slice_2d.out.time, stack_slices_2d.out.time)
}

// Slices, a task a stage: for looking at what one stage does.

include { stage_params } from '../modules/local/schema'
include { placed } from '../modules/local/channels'

include { resample_mosaic_grid } from '../modules/resample_mosaic_grid'
include { detect_focal_curvature } from '../modules/detect_focal_curvature'
include { fix_illumination_3d } from '../modules/fix_illumination_3d'
include { aip_png } from '../modules/aip_png'
include { register_tiles } from '../modules/register_tiles'
include { stitch_3d_refined } from '../modules/stitch_3d_refined'
include { compensate_psf_from_model } from '../modules/compensate_psf_from_model'
include { compensate_psf_model_free } from '../modules/compensate_psf_model_free'
include { crop_3d_mosaic_below_interface } from '../modules/crop_3d_mosaic_below_interface'
include { compensate_attenuation_inplace } from '../modules/compensate_attenuation_inplace'
include { normalize_intensities_per_slice } from '../modules/normalize_intensities_per_slice'

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
    register_tiles(fix_illumination_3d.out.grid, models)
    stitch_3d_refined(
        fix_illumination_3d.out.grid.join(register_tiles.out.positions),
        stage_params('stitch_3d_refined', params, schema),
    )
    times = channel.empty()
    learned = channel.empty()
    volumes = stitch_3d_refined.out.slice
    if (params.compensate_psf_enabled && params.compensate_psf_method == 'model') {
        compensate_psf_from_model(volumes, models, stage_params('compensate_psf_from_model', params, schema))
        volumes = compensate_psf_from_model.out.slice
        times = times.mix(compensate_psf_from_model.out.time)
    }
    if (params.compensate_psf_enabled && params.compensate_psf_method == 'model_free') {
        compensate_psf_model_free(volumes, models, stage_params('compensate_psf_model_free', params, schema))
        volumes = compensate_psf_model_free.out.slice
        times = times.mix(compensate_psf_model_free.out.time)
    }
    crop_3d_mosaic_below_interface(volumes, stage_params('crop_3d_mosaic_below_interface', params, schema))
    volumes = crop_3d_mosaic_below_interface.out.slice
    if (params.compensate_attenuation_enabled) {
        compensate_attenuation_inplace(volumes, stage_params('compensate_attenuation_inplace', params, schema))
        volumes = compensate_attenuation_inplace.out.slice
        learned = compensate_attenuation_inplace.out.models
        times = times.mix(compensate_attenuation_inplace.out.time)
    }
    normalize_intensities_per_slice(
        volumes, stage_params('normalize_intensities_per_slice', params, schema)
    )

    emit:
    slices = normalize_intensities_per_slice.out.slice
    files = normalize_intensities_per_slice.out.slice.map { _slice_id, path -> path }
        .mix(
            aip_png.out.aip,
            register_tiles.out.positions.map { _slice_id, path -> path },
            register_tiles.out.metrics,
            crop_3d_mosaic_below_interface.out.models,
            learned,
            normalize_intensities_per_slice.out.models,
        )
        .flatten()
        .map { path -> placed(path) }
    times = times.mix(
        resample_mosaic_grid.out.time,
        detect_focal_curvature.out.time,
        fix_illumination_3d.out.time,
        aip_png.out.time,
        register_tiles.out.time,
        stitch_3d_refined.out.time,
        crop_3d_mosaic_below_interface.out.time,
        normalize_intensities_per_slice.out.time,
    )
}
